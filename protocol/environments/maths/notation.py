"""One notation for LaTeX, Unicode and plain text, so that the parser sees fewer ways to write the same thing.

Spaces, sizes, fonts and delimiters go; signs become commands (`√` is `\\sqrt`); words, in `\\text{…}` or bare, stand in double
quotes, each by itself (`60 km/h` is `60 "km"/"h"`). Everything is a regular expression without nested repetition: linear in the text.
"""

from __future__ import annotations

import re

from protocol.environments.maths.units import LETTERS, is_unit

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
}  # fmt: skip
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ",
    "√": r"\sqrt ", "∛": r"\sqrt[3] ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ", "±": r"\pm ",
    "∓": r"\mp ", "°": r"^\circ ", "ℝ": r"\R ", "ℤ": r"\Z ", "ℕ": r"\N ", "ℚ": r"\Q ", "ℂ": r"\C ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∧": r"\land ", "∨": r"\lor ", "∣": r"\mid ", "…": "...",
    "€": ' "euro" ', "£": ' "pound" ', "¥": ' "yen" ', "₹": ' "rupee" ', "′": "'", "’": "'", "“": " ", "”": " ", "→": r"\to ", "⁄": "/",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ",
    "ω": r"\omega ", "ℓ": r"\ell ",
}  # fmt: skip
_SPACE = re.compile(r"[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR = re.compile("[" + "".join(_FRACTIONS) + "]")

_DROPPED = set(
    [
        "left",
        "right",
        "big",
        "Big",
        "bigg",
        "Bigg",
        "bigl",
        "bigr",
        "Bigl",
        "Bigr",
        "biggl",
        "biggr",
        "Biggl",
        "Biggr",
        "middle",
        "displaystyle",
        "textstyle",
        "scriptstyle",
        "limits",
        "nolimits",
        "mathstrut",
        "!",
        "/",
        "tiny",
        "small",
        "large",
        "Large",
        "normalsize",
        "boldsymbol",
        "bm",
        "color",
        "nonumber",
        "notag",
        "angle",
        "measuredangle",
        "therefore",
        "triangle",
        "rm",
        "bf",
        "it",
        "sf",
        "tt",
        "mathrm",
        "mathbf",
    ]
)
_SPACES = set([",", ";", ":", ">", "quad", "qquad", "thinspace", "enspace", "medspace", "space", "hspace"]) | {
    " ",
    "\n",
}
_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge", "leqslant": "le",
    "geqslant": "ge", "lt": "lt", "gt": "gt", "neq": "ne", "varnothing": "emptyset", "empty": "emptyset", "infin": "infty",
    "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "vert": "|", "lvert": "|", "rvert": "|", "Vert": "|", "backslash": "setminus",
    "smallsetminus": "setminus", "wedge": "land", "vee": "lor", "ast": "cdot", "thickapprox": "approx", "simeq": "approx", "varphi": "phi",
    "varepsilon": "epsilon", "vartheta": "theta", "imath": "i", "jmath": "j", "degree": "circ", "arg": "arg", "colon": ":", "dots": "...",
    "ldots": "...", "cdots": "...", "tg": "tan", "ctg": "cot", "arctg": "arctan", "reals": "R", "euro": '"euro"', "pounds": '"pound"',
    "textdollar": '"dollar"', "implies": "to", "Rightarrow": "to", "rightarrow": "to", "percent": "%",
}  # fmt: skip
_BARE = {"[", "]", "|", "...", "i", "j", ":", '"euro"', '"pound"', '"dollar"', "%"}  # of these, what is no command
_COMMAND = re.compile(r"\\([A-Za-z]+|.)\*?[ \t]?", re.DOTALL)
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|textnormal|mbox|hbox|fbox|emph|mathsf|mathit|mathtt|texttt|mathcal|operatorname|mathop|underline"
    r"|mathrm|rm|mathbf|boldsymbol|bm|bold|vec|overrightarrow|hat|widehat|bar|tilde|phantom|pmb)\s*\*?\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_UNIT_VECTOR = re.compile(
    r"\\(?:mathbf|vec|hat|widehat|boldsymbol|bm|bold)\s*\{\s*(?:\\(?:mathbf|hat|imath|jmath|vec)\s*\{?\s*)?\\?([ijk])(?:math)?\s*\}+|\\mathbf\s+([ijk])(?![A-Za-z])"
)
_NUMBER_SET = re.compile(r"\\(?:mathbb|mathbf|Bbb)\s*\{?\s*([RZNQC])(?![A-Za-z])\s*\}?")
_DELIMITER = re.compile(r"(?<!\\)\\[()\[\]]|(?<!\\)\$+")
_MARKDOWN = re.compile(r"\*\*|__|`")
_GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\,|\\ |\\;|\\!|\{,\}|~|\u2009|\u202f|\u00a0| )\d{3})+(?![\d])")
_COMMAS = re.compile(r"(?<![\d.])\d{1,3}(?:,(?:\\!)?\d{3})+(?![\d]|,\d)")
_WORD = re.compile(r'(\\[A-Za-z]+|"[^"]*")|[A-Za-z]{2,}(?:\'[a-z]+)?')
_LAST_ROW = re.compile(r"\\\\\s*$")
_ROW_SPACE = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]")
_BOUNDS = {
    "at least": r"\ge ",
    "at most": r"\le ",
    "more than": "> ",
    "less than": "< ",
    "greater than": "> ",
    "fewer than": "< ",
}
_BOUND = re.compile(r'"(at|more|less|greater|fewer)"\s*"(least|most|than)"\s*')
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")
_WHERE = re.compile(
    r'[,;]?\s*+\(?\s*+"(?:where|for|with|such|when)"(?P<clause>(?:[^"]|"[^"]*"){0,200})$|[,;]\s*(?P<letter>[a-z])\s*(?:"is"\s*)?(?:"any"\s*|"an"\s*)*"integers?"\s*\)?$'
)
_PRICE = re.compile(r"^\s*+(-?)\s*+\$(?=\s*+\d)")
_LETTER_UNIT = re.compile(r"(?<=\d)( )([A-Za-z])(?=\s*(?:\^|/|$|\d))")
_PER_LETTER = re.compile(r'(?<="/)([A-Za-z])(?![A-Za-z"])')
_ONE_LETTER = re.compile(r"[A-Za-z]|[0-9.]+|-?[0-9.]*[A-Za-z]?")
FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "arccot",
        "sinh",
        "cosh",
        "tanh",
        "ln",
        "log",
        "lg",
        "exp",
        "sqrt",
        "max",
        "min",
        "gcd",
        "lcm",
        "det",
        "mod",
        "floor",
        "ceil",
        "abs",
        "asin",
        "acos",
        "atan",
        "cbrt",
    ]
)
_KNOWN = FUNCTIONS | {"pi", "infty", "theta", "alpha", "beta", "phi", "lambda", "omega", "frac", "pm", "times", "cdot"}
_PLAIN = {"inf": r"\infty ", "oo": r"\infty ", "infinity": r"\infty ", "union": r"\cup ", "percent": "% "}


def canonical(text: str) -> str:
    """The text in that notation."""
    text = _PRICE.sub(r"\1\\$", text) if text.count("$") == 1 else text
    text = _with_scripts(text)
    text = _SPACE.sub(" ", _SIGN.sub(lambda m: _SIGNS[m[0]], text))
    text = _LAST_ROW.sub("", text)
    text = _ROW_SPACE.sub(r"\\\\ ", text)
    text = _MARKDOWN.sub("", text.replace("\t", " "))
    text = _GROUPS.sub(lambda m: re.sub(r"\D", "", m[0]), text).replace("{,}", ",")
    text = _without_thousands(text).replace(r"\$", ' "dollar" ').replace("~", " ")
    text = _DELIMITER.sub(" ", text)
    text = _NUMBER_SET.sub(lambda m: rf"\{m[1]} ", _UNIT_VECTOR.sub(lambda m: rf"\unit{m[1] or m[2]} ", text))
    for _ in range(4):
        changed = _TEXT.sub(_text, text)
        if changed == text:
            break
        text = changed
    text = _COMMAND.sub(_command, _OVER.sub(r"\\frac{\1}{\2}", text.replace("{:}", ":")))
    text = _LETTER_UNIT.sub(lambda m: f' "{m[2]}"' if m[2] in LETTERS else m[0], _WORD.sub(_word, text))
    text = re.sub(r'\\frac\s*\{\s*("[^"]*")\s*\}\s*\{\s*("[^"]*")\s*\}', r"\1/\2", text)
    text = _BOUND.sub(lambda m: _BOUNDS.get(f"{m[1]} {m[2]}", m[0]), text)
    return _WHERE.sub(_domain, " ".join(_PER_LETTER.sub(r'"\1"', text).split()))


def _domain(match: re.Match[str]) -> str:
    """A clause that says what the letters stand for; only that one is an integer counts."""
    clause = match["clause"] or ""
    if match["letter"]:
        return rf" , {match['letter']} \in \Z"
    if '"mod' in clause or "mod" in clause or r"\le" in clause or "<" in clause or ">" in clause:
        return match[0]
    letter = re.search(r"(?<![A-Za-z\\\"])([a-z])(?![A-Za-z\"])", clause)
    if letter and ("integer" in clause or r"\Z" in clause):
        return rf" , {letter[1]} \in \Z"
    return "" if re.search(r"real|constant|arbitrary|any|\\R", clause) else match[0]


def _with_scripts(text: str) -> str:
    text = _VULGAR.sub(lambda m: r"\frac{{{}}}{{{}}}".format(*_FRACTIONS[m[0]]), text)
    text = _RAISED.sub(lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    return _LOWERED.sub(lambda m: "_{" + m[0].translate(_SUBSCRIPTS) + "}", text)


def _without_thousands(text: str) -> str:
    """Commas between groups of three digits go, but not within brackets, where they part the entries."""
    found, last = [], 0
    depth, at = 0, 0
    for match in _COMMAS.finditer(text):
        for char in text[at : match.start()]:
            depth += (char in "([") - (char in ")]")
        depth += text.count(r"\{", at, match.start()) - text.count(r"\}", at, match.start())
        at = match.start()
        if depth <= 0:
            found += [text[last : match.start()], re.sub(r"\D", "", match[0])]
            last = match.end()
    return "".join([*found, text[last:]])


def _text(match: re.Match[str]) -> str:
    inside = re.sub(r"\\[,;: ]|~", " ", match[1]).strip()
    if _ONE_LETTER.fullmatch(inside):
        return f' "{inside}" ' if inside in LETTERS and _is_after_number(match) else f" {inside} "
    if inside in FUNCTIONS and (inside != "min" or "operatorname" in match[0]):
        return rf"\{inside} "
    if r"\unit" in inside or not re.search("[A-Za-z]", inside):
        return f" {inside} "
    return " " + re.sub(r"(\\[A-Za-z]+)|([A-Za-z]+)", lambda m: m[1] or _quoted(m[2], inside), inside) + " "


def _is_after_number(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 12) : match.start()].replace(r"\,", "").replace("\\ ", "").rstrip(" ~")
    return (
        match[1] != match[1].strip() or before[-1:].isdigit() or before.endswith(("}", "/", r"\frac{", "}{", "\\circ"))
    )


def _quoted(word: str, within: str) -> str:
    """A word of a text: always in quotes, but a letter that stands for a variable or a choice."""
    if len(word) == 1 and not (
        word in LETTERS and re.search(rf"(^|[/·* ]){word}($|[/^·* ])", within) and word not in "AC"
    ):
        return word
    return _PLAIN.get(word.lower()) or f'"{word}"'


def _command(match: re.Match[str]) -> str:
    name = match[1]
    if name in _DROPPED:
        return "" if not name.isalpha() else " "
    if name in _SPACES:
        return " "
    if name in "%#&_" or name == "-":
        return name
    name = _RENAMED.get(name, name)
    if name in _BARE:
        return name
    return rf"\{name}" + (" " if name[-1].isalpha() else "")


def _word(match: re.Match[str]) -> str:
    word = match[0]
    if match[1]:
        return word
    low = word.lower()
    if low in _PLAIN:
        return _PLAIN[low]
    if word in _KNOWN:
        return rf"\{word} "
    if is_unit(word) or len(word) > 3 or low in _SHORT_WORDS:
        return f'"{word}"'
    return word


_SHORT_WORDS = frozenset(
    [
        "and",
        "or",
        "if",
        "is",
        "in",
        "of",
        "to",
        "no",
        "yes",
        "not",
        "the",
        "an",
        "are",
        "for",
        "all",
        "any",
        "odd",
        "one",
        "two",
        "six",
        "ten",
        "by",
        "as",
        "at",
        "be",
        "it",
        "has",
        "set",
        "way",
        "day",
        "men",
        "per",
        "so",
        "we",
        "he",
        "she",
        "its",
        "off",
        "red",
        "us",
        "am",
        "pm",
        "out",
        "day",
        "dne",
        "usd",
        "eur",
        "can",
        "box",
    ]
)
