#!/usr/bin/env python3
"""Turns what the programs bench/proof_*.cc print into tables (Markdown on stdout) and plots (SVG).

  tools/proof_figures.py sensitivity FILE.json FILE.svg
  tools/proof_figures.py merge       FILE.json .. > FILE.json     histograms of several runs of proof_histogram
  tools/proof_figures.py histogram   FILE.json FILE.svg
  tools/proof_figures.py rare        FILE.json
"""
import collections
import json
import math
import sys

COLOURS = {"identity": "#1b7f5c", "sampled": "#2457a7", "projection": "#c2571a"}
FONT = 'font-family="sans-serif" font-size="12"'


class Svg:
    def __init__(self, width, height):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {FONT}>',
                      f'<rect width="{width}" height="{height}" fill="white"/>']

    def line(self, x1, y1, x2, y2, colour="#888"):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>')

    def path(self, points, colour):
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def bar(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def text(self, x, y, words, anchor="start", colour="#222"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>')

    def write(self, path):
        with open(path, "w") as out:
            out.write("\n".join(self.parts) + "\n</svg>\n")


def sensitivity(result, path):
    curves = collections.defaultdict(dict)
    for point in result["points"]:
        curves[point["place"]].setdefault(point["evidence"], []).append((point["e"], point["caught"]))
    print(f"{result['seeds']} seeds, half of them 1 + e, half 1 - e; linear {result['projection']}; experts "
          f"{result['experts']}.\n")
    print("Least e from which on the evidence catches the error with every seed (in brackets: least with any seed).\n")
    kinds = list(COLOURS)
    print("| 1 + e on | " + " | ".join(kinds) + " | any kind |\n|---" + "|---" * (len(kinds) + 1) + "|")
    for place, by_kind in curves.items():
        cells, least = [], math.inf
        for kind in kinds:
            points = sorted(by_kind[kind])
            some = min((e for e, caught in points if caught > 0), default=None)
            every = None
            for e, caught in reversed(points):
                if caught < 1:
                    break
                every = e
            least = min(least, every or math.inf)
            cells.append(f"{every:.2g}" if every else "-")
            if some and some != every:
                cells[-1] += f" ({some:.2g})"
        print(f"| {place} | " + " | ".join(cells) + f" | {least:.2g} |")
    svg, wide, high, columns = Svg(960, 560), 300, 240, 3
    for i, (place, by_kind) in enumerate(curves.items()):
        left, top = 30 + i % columns * (wide + 10), 30 + i // columns * (high + 30)
        width, height = wide - 30, high - 60
        svg.text(left + width / 2, top, place, "middle")
        svg.line(left, top + 15 + height, left + width, top + 15 + height)
        svg.line(left, top + 15, left, top + 15 + height)
        for share in (0, 0.5, 1):
            svg.text(left - 4, top + 19 + height * (1 - share), f"{share:g}", "end", "#666")
        for exponent in (-13, -10, -7, -4, -1):
            x = left + width * (exponent + 13) / 12
            svg.line(x, top + 15 + height, x, top + 19 + height)
            svg.text(x, top + 33 + height, f"2^{exponent}", "middle", "#666")
        for kind, points in by_kind.items():
            svg.path([(left + width * (math.log2(e) + 13) / 12, top + 15 + height * (1 - caught))
                      for e, caught in sorted(points)], COLOURS[kind])
    for i, (kind, colour) in enumerate(COLOURS.items()):
        svg.bar(300 + 130 * i, 536, 14, 4, colour)
        svg.text(320 + 130 * i, 542, kind)
    svg.text(20, 542, "share of seeds caught, against e")
    svg.write(path)


def histogram(result, path):
    width, total = result["bin_width"], result["runs"]
    print(f"{total} runs of {len(result['runs_by_row'])} rows on {result['models']} models of random sizes; "
          f"{result['comparisons']} comparisons; {len(result['failures'])} failures; largest error over bound "
          f"{result['largest']:.4f}.\n")
    count = len(next(iter(result["bins"].values())))
    last = max(i for bins in result["bins"].values() for i, n in enumerate(bins) if n)
    groups = [(0, 5), (5, 10), (10, 15), (15, 20), (20, 25), (25, 50), (50, count)]
    names = [f"{first * width:.1f} to {end * width:.1f}" for first, end in groups[:-1]] + ["above 1"]
    print("| op | runs | " + " | ".join(names) + " |\n|---|---" + "|---" * len(names) + "|")
    for op, bins in result["bins"].items():
        print(f"| {op} | {sum(bins)} | " + " | ".join(str(sum(bins[a:b])) for a, b in groups) + " |")
    print("\nThe largest:\n\n| error over bound | op | Desc | row | evidence | where | seed |\n|---|---|---|---|---|---|---|")
    for worst in result["worst"][:10]:
        print(f"| {worst['error_over_bound']:.4f} | {worst['op']} | {worst['desc']} | {worst['row']} | "
              f"{worst['evidence']} | {worst['where']} | {worst['seed']} |")
    sums = [sum(bins[i] for bins in result["bins"].values()) for i in range(count)]
    svg, left, base, height = Svg(760, 330), 60, 270, 220
    shown = max(last + 1, 30)
    step = 660 / shown
    for i in range(shown):
        bar = height * sums[i] / max(sums)
        svg.bar(left + i * step, base - bar, step - 1, bar, "#2457a7" if i < 25 else "#c2571a")
    svg.line(left, base, left + 660, base)
    for i in range(0, shown + 1, 5):
        svg.text(left + i * step, base + 18, f"{i * width:.1f}", "middle")
    svg.line(left + 25 * step, base, left + 25 * step, base - height, "#c2571a")
    svg.text(left - 6, base - height + 4, str(max(sums)), "end")
    svg.text(left, 24, f"Largest error over bound of a run, {total} runs of healthy rows")
    svg.text(left + 330, base + 40, "error over bound (a right row stays at or under 0.5)", "middle")
    svg.write(path)


def merge(results):
    merged = results[0]
    for result in results[1:]:
        for key in ("runs", "models", "comparisons"):
            merged[key] += result[key]
        for key in ("failures", "worst"):
            merged[key] += result[key]
        for row, runs in result["runs_by_row"].items():
            merged["runs_by_row"][row] = merged["runs_by_row"].get(row, 0) + runs
        for op, bins in result["bins"].items():
            before = merged["bins"].get(op, [0] * len(bins))
            merged["bins"][op] = [a + b for a, b in zip(before, bins)]
    merged["worst"] = sorted(merged["worst"], key=lambda worst: -worst["error_over_bound"])[:20]
    merged["largest"] = merged["worst"][0]["error_over_bound"]
    print(json.dumps(merged, indent=1))


def rare(result):
    counts = [rate["n"] for rate in result["faults"][0]["rates"]]
    print(f"{result['seeds']} seeds. Share caught within n chains (in brackets: expected of independent chances).\n")
    print("| op | fault | chances a chain | by | " + " | ".join(f"n = {n}" for n in counts) + " |")
    print("|---|---|---|---" + "|---" * len(counts) + "|")
    for fault in result["faults"]:
        cells = [f"{rate['caught']:.2f} ({rate['expected']:.2f})" for rate in fault["rates"]]
        print(f"| {fault['op']} | {fault['fault']} | {fault['chances_per_chain']:.0f} {fault['chance']} | "
              f"{', '.join(fault['caught_by'])} | " + " | ".join(cells) + " |")


def main():
    kind, source = sys.argv[1:3]
    if kind == "merge":
        return merge([json.loads(open(path).read()) for path in sys.argv[2:]])
    with open(source) as text:
        result = json.load(text)
    if kind == "rare":
        rare(result)
    else:
        {"sensitivity": sensitivity, "histogram": histogram}[kind](result, sys.argv[3])


if __name__ == "__main__":
    main()
