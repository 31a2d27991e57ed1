"""Finds the places of C++ sources where a mutant can be made, and rewrites them to the functions of tests/faults/mutant.h.

clang's syntax tree says where expressions begin and end; what is compiled afterwards is the rewritten text, by the
compiler and flags of the row itself.
"""
import dataclasses
import json
import re
import subprocess

# Function of mutant.h and what each of its alternatives does.
BINARY = {
    "+": ("add", ["+ to -", "right of + left out"]),
    "-": ("subtract", ["- to +", "right of - left out"]),
    "*": ("multiply", ["right of * left out", "* to +"]),
    "/": ("divide", ["/ to *", "right of / left out"]),
    "%": ("remainder", ["right of % left out", "% of one more"]),
    "<<": ("shift_left", ["<< to >>", "<< by one less"]),
    ">>": ("shift_right", [">> to <<", ">> by one less"]),
    "&": ("bit_and", ["& to |", "right of & left out"]),
    "|": ("bit_or", ["| to &", "right of | left out"]),
    "^": ("bit_xor", ["right of ^ left out", "left of ^ left out"]),
    "<": ("less", ["< to <=", "< ends one early"]),
    "<=": ("less_equal", ["<= to <", "<= ends one late"]),
    ">": ("greater", ["> to >=", "> begins one late"]),
    ">=": ("greater_equal", [">= to >", ">= begins one early"]),
    "==": ("equal", ["== to !=", "== never"]),
    "!=": ("unequal", ["!= to ==", "!= always"]),
}
ASSIGN = {
    "+=": ("assign_add", ["+= to -=", "+= to ="]),
    "-=": ("assign_subtract", ["-= to +=", "-= to ="]),
    "*=": ("assign_multiply", ["*= to +=", "*= to ="]),
    "/=": ("assign_divide", ["/= to *=", "/= to ="]),
    "|=": ("assign_or", ["|= to &=", "|= to ="]),
    "&=": ("assign_and", ["&= to |=", "&= to ="]),
}
# Intrinsics with the same operands.
SIBLINGS = [("_add_", "_sub_"), ("_sub_", "_add_"), ("_mul_ps", "_add_ps"), ("_max_", "_min_"), ("_min_", "_max_"),
            ("_fmadd_", "_fmsub_"), ("_and_", "_or_"), ("_or_", "_and_"), ("_slli_", "_srli_"), ("_srli_", "_slli_"),
            ("_srai_", "_srli_"), ("_cvtepu16_", "_cvtepi16_"), ("_cvtepu8_", "_cvtepi8_"),
            ("_unpacklo_", "_unpackhi_"), ("_unpackhi_", "_unpacklo_"), ("_movehl_", "_movelh_"),
            ("_cmpgt_", "_cmpeq_")]


# What is read by the compiler alone, or written by it.
CONSTANT = {"ConstantExpr", "StaticAssertDecl", "EnumDecl", "TemplateArgument", "NonTypeTemplateParmDecl", "AlignedAttr",
            "TypeAliasDecl", "SubstNonTypeTemplateParmExpr"}


@dataclasses.dataclass
class Site:
    path: str
    begin: int
    end: int
    parts: list  # text, or (begin, end) of an operand; "ID" stands for the number of the first alternative
    names: list  # of the alternatives
    first: int = -1

    def order(self):
        """Outer before inner; of two at one place first the one that keeps it whole."""
        return self.begin, -self.end, (self.begin, self.end) not in self.parts, self.parts[0]


class Finder:
    """Walks one syntax tree; sites of the wanted files, each place once."""

    def __init__(self, texts):
        self.texts = texts  # path -> text
        self.sites = {}
        self.file = None

    # clang names a file only where it changes.
    def locate(self, place):
        for key, value in place.items():
            if key == "file":
                self.file = value
        if "offset" in place:
            place["path"] = self.file
        for key in ("spellingLoc", "expansionLoc"):
            if key in place:
                self.locate(place[key])

    def resolve(self, node):
        """Puts the path into every location, in the order of the dump."""
        for key, value in node.items():
            if key == "loc":
                self.locate(value)
            elif key == "range":
                self.locate(value["begin"])
                self.locate(value["end"])
            elif key == "inner":
                for child in value:
                    self.resolve(child)
            elif isinstance(value, dict) and key == "array_filler":
                self.resolve(value)

    def extent(self, node):
        """(path, begin, end) of a node written out in a wanted file, not by a macro."""
        span = node.get("range", {})
        begin, end = span.get("begin", {}), span.get("end", {})
        if "offset" not in begin or "offset" not in end or begin["path"] not in self.texts:
            return None
        return begin["path"], begin["offset"], end["offset"] + end["tokLen"]

    def add(self, node, parts, names):
        path, begin, end = self.extent(node)
        key = (path, begin, end, parts[0])
        if key not in self.sites:
            self.sites[key] = Site(path, begin, end, parts, names)

    def operands(self, node, count):
        inner = node.get("inner", [])
        if len(inner) != count or self.extent(node) is None:
            return None
        spans = [self.extent(child) for child in inner]
        if any(span is None or span[0] != self.extent(node)[0] for span in spans):
            return None
        return [span[1:] for span in spans]

    def text(self, node):
        path, begin, end = self.extent(node)
        return self.texts[path][begin:end].decode()

    def visit(self, node, parent=None, statement=False):
        kind = node.get("kind", "")
        if kind in CONSTANT:
            return
        if kind == "VarDecl" and (node.get("constexpr") or parent in ("NamespaceDecl", None)):
            return
        if kind in ("FunctionDecl", "CXXMethodDecl"):
            returned, _, parameters = node.get("type", {}).get("qualType", "").partition("(")
            constant = self.extent(node) is not None and "constexpr" in self.text(node).partition("(")[0]
            if "Impl<" in returned or (constant and parameters.startswith(")")):  # lists of rows; tables
                return
        if kind == "CXXRecordDecl" and parent != "LambdaExpr" and node.get("definitionData", {}).get("isLambda"):
            return  # met again where it is written
        if statement:
            self.statement(node, kind)
        handler = getattr(self, "on_" + kind, None)
        if handler is not None and self.extent(node) is not None:
            handler(node)
        inner = node.get("inner", [])
        if kind == "CXXForRangeStmt":  # between: the iterators that the compiler adds
            inner = inner[:2] + inner[-1:]
        if kind == "CallExpr" and self.extent(node) and self.text(node).startswith(("fmt::format(", "__builtin_prefetch(")):
            return  # messages and hints change nothing
        if kind == "ShuffleVectorExpr":  # the lanes are the compiler's
            inner = inner[:2]
        constant_condition = kind == "IfStmt" and node.get("isConstexpr")
        for i, child in enumerate(inner):
            if constant_condition and i == 0:
                continue
            body = kind == "CompoundStmt" or (kind in ("ForStmt", "WhileStmt", "CXXForRangeStmt") and i == len(inner) - 1)
            self.visit(child, kind, body or (kind == "IfStmt" and i == 1 and len(inner) == 2))

    # A statement left out.
    def statement(self, node, kind):
        if self.extent(node) is None or kind not in ("CallExpr", "CXXMemberCallExpr", "CXXOperatorCallExpr", "BreakStmt",
                                                     "ContinueStmt", "BinaryOperator", "CompoundAssignOperator",
                                                     "UnaryOperator", "ExprWithCleanups"):
            return
        if re.match(r"(CHECK|static_assert|_mm_prefetch|__builtin_prefetch)\b", self.text(node)):
            return
        self.add(node, ["if (!mutant::on(ID)) ", self.extent(node)[1:]], ["left out"])

    def on_BinaryOperator(self, node):
        spans = self.operands(node, 2)
        operator = node.get("opcode")
        if spans is None:
            return
        if operator in BINARY:
            function, names = BINARY[operator]
            self.add(node, [f"mutant::{function}<ID>(", spans[0], ", ", spans[1], ")"], names)
        elif operator == "&&":
            self.add(node, ["((mutant::on(ID) || (", spans[0], ")) && (mutant::on(ID + 1) || (", spans[1], ")))"],
                     ["left of && left out", "right of && left out"])
        elif operator == "||":
            self.add(node, ["((!mutant::on(ID) && (", spans[0], ")) || (!mutant::on(ID + 1) && (", spans[1], ")))"],
                     ["left of || left out", "right of || left out"])

    def on_CompoundAssignOperator(self, node):
        spans = self.operands(node, 2)
        if spans is not None and node.get("opcode") in ASSIGN:
            function, names = ASSIGN[node["opcode"]]
            self.add(node, [f"mutant::{function}<ID>(", spans[0], ", ", spans[1], ")"], names)

    def on_UnaryOperator(self, node):
        spans = self.operands(node, 1)
        if spans is None or node.get("isPostfix"):
            return
        names = {"++": ("increment", "++ by two"), "--": ("decrement", "-- by two"), "-": ("negate", "- left out"),
                 "!": ("invert", "! left out")}
        if node.get("opcode") in names:
            function, name = names[node["opcode"]]
            self.add(node, [f"mutant::{function}<ID>(", spans[0], ")"], [name])

    def condition(self, node):
        if self.extent(node) is not None:
            self.add(node, ["mutant::condition<ID>(", self.extent(node)[1:], ")"], ["condition always", "condition never"])

    def on_ConditionalOperator(self, node):
        self.condition(node["inner"][0])

    def on_IfStmt(self, node):
        if not (node.get("isConstexpr") or node.get("hasVar") or node.get("hasInit")):
            self.condition(node["inner"][0])

    def on_ArraySubscriptExpr(self, node):
        spans = self.operands(node, 2)
        if spans is not None:
            begin, end = self.extent(node)[1:]
            self.add(node, [(begin, spans[0][1]), "[mutant::index<ID>(", spans[1], ")]"], ["index + 1", "index - 1"])

    def on_IntegerLiteral(self, node):
        self.add(node, ["mutant::integer<ID>(", self.extent(node)[1:], ")"], ["constant + 1", "constant - 1"])

    def on_FloatingLiteral(self, node):
        self.add(node, ["mutant::real<ID>(", self.extent(node)[1:], ")"], ["constant doubled", "constant 1 % off"])

    def on_CXXBoolLiteralExpr(self, node):
        self.add(node, ["mutant::boolean<ID>(", self.extent(node)[1:], ")"], ["constant inverted"])

    def on_CallExpr(self, node):
        inner = node["inner"]
        if self.extent(inner[0]) is None:
            return
        begin, end = self.extent(node)[1:]
        name = self.text(inner[0])
        if name in ("std::min", "std::max") or re.match(r"std::(min|max)<\w+>$", name):
            other = name.replace("min", "MAX").replace("max", "min").replace("MAX", "max")
            self.sibling(node, name, other, f"{name} to {other}")
        if name.startswith("_mm"):
            for old, new in SIBLINGS:
                if old in name:
                    self.sibling(node, name, name.replace(old, new, 1), f"{old.strip('_')} to {new.strip('_')}")
                    break
        self.swapped(node, inner[1:])

    on_CXXMemberCallExpr = lambda self, node: self.swapped(node, node["inner"][1:])

    def sibling(self, node, name, other, what):
        begin, end = self.extent(node)[1:]
        call = self.texts[self.extent(node)[0]][begin:end].decode()
        if not call.startswith(name + "("):
            return
        head = ("[&](const auto&... arguments) { return mutant::on(ID) ? " + other + "(arguments...) : " + name +
                "(arguments...); }(")
        self.add(node, [head, (begin + len(name) + 1, end - 1), ")"], [what])

    # Two neighbouring arguments of one type, both plain names, exchanged.
    def swapped(self, node, arguments):
        def plain(argument):
            while argument.get("kind") in ("ImplicitCastExpr", "MaterializeTemporaryExpr") and argument.get("inner"):
                argument = argument["inner"][0]
            named = argument.get("kind") in ("DeclRefExpr", "MemberExpr", "CXXDependentScopeMemberExpr")
            return argument if named and self.extent(argument) is not None else None

        for left, right in zip(arguments, arguments[1:]):
            a, b = plain(left), plain(right)
            if a is None or b is None or a["type"]["qualType"] != b["type"]["qualType"]:
                continue
            x, y = self.text(a), self.text(b)
            if x == y:
                continue
            (_, begin, middle), (_, after, end) = self.extent(a), self.extent(b)
            site = [f"mutant::either<ID>({x}, {y}), mutant::either<ID>({y}, {x})"]
            key = (self.extent(a)[0], begin, end, site[0])
            self.sites.setdefault(key, Site(key[0], begin, end, site, [f"{x} and {y} exchanged"]))


def find_sites(compile_words, source, wanted):
    """All sites of `wanted` files as the compilation of `source` sees them, in order."""
    texts = {str(path): path.read_bytes() for path in wanted}
    finder = Finder(texts)
    flags = [word for word in compile_words if word.startswith(("-I", "-D", "-std", "-m"))]
    command = ["clang++-14", *flags, "-fsyntax-only", "-w", "-Xclang", "-ast-dump=json", "-Xclang",
               "-ast-dump-filter=assay::", str(source)]
    command = [word for word in command if not word.startswith("-mprefer")]
    dump = subprocess.run(command, capture_output=True, text=True)
    decoder, at = json.JSONDecoder(), 0
    while (at := dump.stdout.find("{", at)) >= 0:
        tree, at = decoder.raw_decode(dump.stdout, at)
        finder.file = None
        finder.resolve(tree)
        finder.visit(tree)
    if not finder.sites and dump.returncode != 0:
        raise SystemExit(f"{source}: clang: {dump.stderr[:500]}")
    return sorted(finder.sites.values(), key=lambda site: (site.path, *site.order()))


def rewrite(text, sites):
    """The text with the sites in place, each call at the start of a line of its own, and the site of each such line. Of
    two that overlap the second is left out."""
    pieces, line_sites, line = [], {}, 1

    def emit(part):
        nonlocal line
        pieces.append(part)
        line += part.count("\n")

    def render(begin, end, inside):
        at = begin
        while inside:
            site, rest = inside[0], inside[1:]
            within = [other for other in rest if other.begin < site.end]
            emit(text[at:site.begin].decode() + "\n")
            line_sites[line] = site
            for part in site.parts:
                if isinstance(part, str):
                    emit(re.sub(r"\bID\b", str(site.first), part))
                else:
                    render(*part, [other for other in within if part[0] <= other.begin and other.end <= part[1]])
            at = site.end
            inside = rest[len(within):]
        emit(text[at:end].decode())

    render(0, len(text), sorted(sites, key=Site.order))
    return "".join(pieces), line_sites
