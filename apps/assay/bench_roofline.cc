#include "assay/bench_roofline.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace assay::app {
namespace {

// Pixels.
constexpr double kLeft = 80, kTop = 60, kPlotWidth = 640, kPlotHeight = 480, kLegendX = kLeft + kPlotWidth + 30;
constexpr double kLegendWidth = 760, kLineHeight = 18;
constexpr const char* kColours[] = {"#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#b8860b", "#2f4858"};

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

struct Point {
  const OpTiming* op;
  const OpTable* table;
  size_t table_index;
  double intensity() const { return op->work.flops / op->work.bytes; }  // FLOP/byte
  double speed() const { return op->work.flops / op->us * 1e6; }        // FLOP/s
};

// A logarithmic axis: value -> pixels.
struct Axis {
  double low, high;    // powers of ten
  double begin, size;  // pixels; size < 0: upwards
  double at(double value) const { return begin + size * std::log10(value / low) / std::log10(high / low); }
};

Axis axis(double low, double high, double begin, double size) {
  return {std::pow(10, std::floor(std::log10(low))), std::pow(10, std::ceil(std::log10(high))), begin, size};
}

std::string power_label(double value) {
  constexpr const char* kPrefix[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; value >= 1000 && prefix + 1 < std::size(kPrefix); value /= 1000) ++prefix;
  return fmt::format("{:g}{}", value, kPrefix[prefix]);
}

std::string text(double x, double y, const char* anchor, const std::string& content, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(content));
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

class Picture {
 public:
  Picture(const Roof& roof, const std::vector<OpTable>& tables) : roof_(roof) {
    for (size_t t = 0; t < tables.size(); ++t) {
      for (const OpTiming& op : tables[t].ops) {
        if (op.work.flops > 0 && op.us > 0) points_.push_back({&op, &tables[t], t});
      }
    }
    const double ridge = roof.flop_per_s / roof.bytes_per_s;
    double least_x = ridge / 10, most_x = ridge * 10, least_y = roof.flop_per_s / 100;
    for (const Point& point : points_) {
      least_x = std::min(least_x, point.intensity());
      most_x = std::max(most_x, point.intensity());
      least_y = std::min(least_y, point.speed());
    }
    x_ = axis(least_x, most_x, kLeft, kPlotWidth);
    y_ = axis(least_y, roof.flop_per_s, kTop + kPlotHeight, -kPlotHeight);
  }

  std::string svg(const std::string& title) const {
    const double height =
        std::max(kTop + kPlotHeight + 60, kTop + kLineHeight * (static_cast<double>(legend_lines()) + 1));
    const double width = kLegendX + kLegendWidth;
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
        width, height);
    out += text(kLeft, 30, "start", title, " font-size=\"16\"");
    return out + grid() + roof_lines() + marks() + legend() + "</svg>\n";
  }

 private:
  size_t legend_lines() const {
    size_t tables = 0;
    for (size_t i = 0; i < points_.size(); ++i) tables += i == 0 || points_[i].table != points_[i - 1].table;
    return points_.size() + 2 * tables;
  }

  std::string grid() const {
    constexpr char kGrid[] = "stroke=\"#ddd\"";
    std::string out;
    const double bottom = kTop + kPlotHeight, right = kLeft + kPlotWidth;
    for (double value = x_.low; value <= x_.high * 1.01; value *= 10) {
      out += line(x_.at(value), kTop, x_.at(value), bottom, kGrid);
      out += text(x_.at(value), bottom + 18, "middle", fmt::format("{:g}", value));
    }
    for (double value = y_.low; value <= y_.high * 1.01; value *= 10) {
      out += line(kLeft, y_.at(value), right, y_.at(value), kGrid);
      out += text(kLeft - 8, y_.at(value) + 4, "end", power_label(value));
    }
    out += text(kLeft + kPlotWidth / 2, bottom + 42, "middle", "FLOP / byte");
    return out + text(20, kTop - 12, "start", "FLOP/s");
  }

  std::string roof_lines() const {
    constexpr char kRoof[] = "stroke=\"black\" stroke-width=\"2\"";
    const double ridge = roof_.flop_per_s / roof_.bytes_per_s;
    // Where the slope enters the plot: at its left or its lower edge.
    const double from = std::max(x_.low, y_.low / roof_.bytes_per_s);
    const double slope_x = x_.at(std::sqrt(from * ridge));
    const double slope_y = y_.at(std::sqrt(from * ridge) * roof_.bytes_per_s);
    const double angle =
        std::atan2(y_.at(roof_.flop_per_s) - y_.at(from * roof_.bytes_per_s), x_.at(ridge) - x_.at(from));
    std::string out = line(x_.at(from), y_.at(from * roof_.bytes_per_s), x_.at(ridge), y_.at(roof_.flop_per_s), kRoof);
    out += line(x_.at(ridge), y_.at(roof_.flop_per_s), x_.at(x_.high), y_.at(roof_.flop_per_s), kRoof);
    out += fmt::format("<g transform=\"translate({:.1f} {:.1f}) rotate({:.1f})\">", slope_x, slope_y,
                       angle * 180 / std::acos(-1.0));
    out += text(0, -8, "middle", fmt::format("{:.1f} GB/s", roof_.bytes_per_s / 1e9));
    out += "</g>\n";
    return out + text(kLeft + kPlotWidth - 6, y_.at(roof_.flop_per_s) - 8, "end",
                      fmt::format("{:.1f} GFLOP/s", roof_.flop_per_s / 1e9));
  }

  std::string marks() const {
    constexpr double kLabelWidth = 16, kLabelHeight = 11;
    struct Label {
      double x, y;
    };
    std::string out;
    std::vector<Label> labels;
    for (size_t i = 0; i < points_.size(); ++i) {
      const double x = x_.at(points_[i].intensity()), y = y_.at(points_[i].speed());
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x, y, colour(points_[i]));
      // Below the labels that are there already.
      Label label{x + 6, y + 4};
      const auto covers = [&](const Label& other) {
        return std::abs(other.x - label.x) < kLabelWidth && std::abs(other.y - label.y) < kLabelHeight;
      };
      while (std::any_of(labels.begin(), labels.end(), covers)) label.y += 1;
      labels.push_back(label);
      out += text(label.x, label.y, "start", std::to_string(i + 1), " font-size=\"11\"");
    }
    return out;
  }

  std::string legend() const {
    std::string out;
    double y = kTop;
    for (size_t i = 0; i < points_.size(); ++i) {
      const Point& point = points_[i];
      if (i == 0 || point.table != points_[i - 1].table) {
        out += text(kLegendX, y, "start", point.table->title() + ": share of the limit, share of the time",
                    fmt::format(" font-weight=\"bold\" fill=\"{}\"", colour(point)).c_str());
        y += kLineHeight;
      }
      const double share = point.table->roof.least_us(point.op->work) / point.op->us;
      out += text(kLegendX, y, "start",
                  fmt::format("{}  {:.2f}  {:.1f} %  {} {}  {}", i + 1, share, 100 * point.op->us / point.table->us(),
                              point.op->op, point.op->row, point.op->desc));
      y += kLineHeight;
      if (i + 1 < points_.size() && point.table != points_[i + 1].table) y += kLineHeight;
    }
    return out;
  }

  static const char* colour(const Point& point) { return kColours[point.table_index % std::size(kColours)]; }

  Roof roof_;
  std::vector<Point> points_;
  Axis x_{};
  Axis y_{};
};

}  // namespace

std::string roofline_svg(const std::string& title, const Roof& roof, const std::vector<OpTable>& tables) {
  return Picture(roof, tables).svg(title);
}

}  // namespace assay::app
