"""Which language a file is written in, by its name; how many lines it has."""

import os
from typing import Final

__all__ = ["BINARY", "OTHER", "is_binary", "language_of", "lines_in"]

BINARY: Final = "binary"
OTHER: Final = "other text"

_SUFFIXES: Final = {
    "Assembly": "asm s",
    "Batch": "bat cmd",
    "C": "c h",
    "C#": "cs",
    "C++": "cc cpp cxx hpp hh hxx cuh",
    "CSS": "css scss sass less",
    "CSV": "csv tsv",
    "CUDA": "cu",
    "Clojure": "clj cljs cljc",
    "Dart": "dart",
    "Elixir": "ex exs",
    "Erlang": "erl hrl",
    "F#": "fs fsx",
    "Fortran": "f f90 f95",
    "Go": "go",
    "GraphQL": "graphql gql",
    "HTML": "html htm xhtml",
    "Haskell": "hs",
    "INI": "ini cfg conf properties",
    "JSON": "json jsonl json5 ipynb",
    "Java": "java",
    "JavaScript": "js mjs cjs jsx",
    "Julia": "jl",
    "Kotlin": "kt kts",
    "Lisp": "lisp el scm rkt",
    "Lua": "lua",
    "Markdown": "md markdown mdx",
    "Nix": "nix",
    "OCaml": "ml mli",
    "Objective-C": "m mm",
    "PHP": "php",
    "Perl": "pl pm",
    "PowerShell": "ps1 psm1",
    "Protobuf": "proto",
    "Python": "py pyi pyw pyx",
    "R": "r rmd",
    "Ruby": "rb rake",
    "Rust": "rs",
    "SQL": "sql",
    "SVG": "svg",
    "Scala": "scala sbt",
    "Shell": "sh bash zsh fish",
    "Svelte": "svelte",
    "Swift": "swift",
    "TOML": "toml",
    "TeX": "tex bib sty",
    "Terraform": "tf tfvars",
    "Text": "txt",
    "TypeScript": "ts mts cts tsx",
    "Vue": "vue",
    "XML": "xml xsd xsl",
    "YAML": "yaml yml",
    "Zig": "zig",
    "reStructuredText": "rst",
}
_BY_SUFFIX: Final = {
    f".{suffix}": name for name, suffixes in _SUFFIXES.items() for suffix in suffixes.split()
}
_BY_NAME: Final = {
    "cmakelists.txt": "CMake",
    "dockerfile": "Dockerfile",
    "gemfile": "Ruby",
    "makefile": "Makefile",
    "gnumakefile": "Makefile",
    "rakefile": "Ruby",
}
_SHEBANGS: Final = {b"python": "Python", b"sh": "Shell", b"bash": "Shell", b"node": "JavaScript"}
_LOOKED_AT: Final = 8_192


def is_binary(content: bytes) -> bool:
    """Tell whether `content` is no text: a NUL among its first bytes, as git decides it."""
    return b"\0" in content[:_LOOKED_AT]


def lines_in(content: bytes) -> int:
    """Return the number of lines; a last one without a line break counts."""
    return content.count(b"\n") + (not content.endswith(b"\n") if content else 0)


def language_of(path: str, content: bytes) -> str:
    """Return the language of a file by its name, its first line or, failing both, its bytes."""
    if is_binary(content):
        return BINARY
    name = os.path.basename(path).lower()
    found = _BY_NAME.get(name) or _BY_SUFFIX.get(os.path.splitext(name)[1])
    if found is not None:
        return found
    if content.startswith(b"#!"):
        words = content.split(b"\n", 1)[0].replace(b"/", b" ").split()
        for word in words:
            if (spoken := _SHEBANGS.get(word.rstrip(b"0123456789."))) is not None:
                return spoken
    return OTHER
