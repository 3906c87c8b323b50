"""Phrases by which a text speaks to the model that reads it, instead of describing something.

Knows texts in the form of `folded`: small Latin letters, one space between words. A phrase is one
that plain descriptions do not use: a word that also has a harmless use is none by itself. They
follow published attacks on descriptions: "tool poisoning" (Invariant Labs, 2025) and "line jumping"
(Trail of Bits, 2025). Gaps are bounded, so that a search takes time in proportion to the text.
"""

import re
from typing import Final

__all__ = ["PHRASES"]

_ASIDE: Final = (
    r"\b(?:ignore|disregard|forget|bypass|discard) (?:(?:all|any|the|of|these|other) ){0,4}"
)
_EARLIER: Final = r"(?:(?:your|those) )?(?:previous|prior|above|earlier|preceding) (?:\w+ ){0,2}"
_ORDERS: Final = r"(?:instructions?|prompts?|rules|guidelines|directions|directives|messages)\b"
_NOT: Final = (
    r"\b(?:do not|don't|never|must not|mustn't|should not|shouldn't|without|avoid|refrain from) "
    r"(?:\w+ )?"
)
_PERSON: Final = (
    r"(?:the |your |any )?(?:end )?(?:users?|humans?|person|people|customers?|operator|anyone)\b"
)
_TELL: Final = r"(?:tell|telling|inform|informing) "
_SAY: Final = r"(?:mention|mentioning|reveal|revealing|disclose|disclosing|say|explain) "
_ASK: Final = r"\b(?:do not|don't|never|no need to) (?:ask|seek|wait for) "
_CONSENT: Final = r"(?:'s)?(?: \w+){0,3} (?:permission|confirmation|approval|consent)\b"
_CALL: Final = r"(?:call|use|invoke|run|execute)"
_MUST: Final = r"\byou (?:must|have to|shall|should) always (?:\w+ )?"
_ANY_TOOL: Final = r"(?:any|all|every|each)(?: of the)?(?: other)? (?:tools?|functions?)\b"
_TAGS: Final = (
    r"(system|instructions?|assistant|hidden|secret|admin|override|priority|critical|attention)"
)
_SECRET: Final = (
    r"(?:\.ssh\b(?!/(?:config|known_hosts|\S*\.pub)\b)|\bid_(?:rsa|ed25519|ecdsa|dsa)\b(?!\.pub)|\.aws/credentials"
    r"|/etc/(?:passwd|shadow)\b|\.netrc\b|\.git-credentials\b|\bmcp\.json\b"
    r"|\bclaude_desktop_config\b|\bwallet\.dat\b|\.gnupg\b)"
)
_GIVE: Final = (
    r"\b(?:pass|send|include|provide|append|attach|put|supply|paste|upload|copy|post|forward)\b"
)
_SECRETS: Final = (
    r"(?:api keys?|passwords?|credentials|secrets|access tokens?|private keys?"
    r"|environment variables|session cookies)\b"
)

_WRITTEN: Final = {
    "it tells the model to set its instructions aside": (
        _ASIDE + _EARLIER + _ORDERS,
        r"\boverride (?:(?:all|any|the|your) ){0,3}" + _EARLIER + _ORDERS,
        _ASIDE + r"(?:your|system|developer|safety) (?:\w+ ){0,2}"
        r"(?:instructions?|rules|guidelines|directives)\b",
        r"\b(?:ignore|disregard|forget) everything (?:above|before|you were told|you know)\b",
        r"\byou are (?:now|no longer) (?:a|an|the|in|bound|restricted)\b",
        r"\bnew (?:system )?instructions ?:",
    ),
    "it tells the model to keep something from the person": (
        _NOT + _TELL + _PERSON,
        _NOT + _SAY + r"(?:\w+ ){0,6}to " + _PERSON,
        r"\b(?:do not|don't|never) mention (?:this|that|these|it|the)(?: \w+)? "
        r"(?:instructions?|steps?|tools?|calls?|parameters?|notes?|to)\b",
        r"\b(?:keep|conceal|hide) (?:this|these|it)(?: \w+){0,4} from " + _PERSON,
        _ASK + _PERSON + _CONSENT,
        r"\bregardless of what the (?:user|human) (?:says|asks|wants)\b",
    ),
    "it puts itself before other tools": (
        r"\b(?:before|prior to|instead of) "
        rf"(?:(?:using|calling|invoking|running|executing|you {_CALL}) )?" + _ANY_TOOL,
        _MUST + r"(?:call|invoke|run|execute)\b",
        _MUST + r"use (?:this|the \w+) (?:tool|function)\b",
        r"\b(?:must|should) always be (?:called|invoked|used|run|executed) (?:first|before)\b",
        rf"\balways {_CALL} (?:this|the) (?:\w+ )?(?:tool|function) (?:\w+ )?"
        r"(?:before|for|on) (?:any|every|all|each|answering|responding|replying)\b",
        r"\bdo not use any other tools?\b",
    ),
    "it speaks in the marks of a conversation": (
        r"<important\b[^>]{0,80}>",
        rf"<{_TAGS}(?:[_-](?:prompt|message|reminder|note))?>.{{0,4000}}</\1",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>",
        r"\[/?inst\]|<</?sys>>",
    ),
    "it asks for secrets": (
        r"\bcontents? (?:of|from|in)\b.{0,60}?" + _SECRET,
        r"\b(?:read|open|cat|load|fetch|access)\b.{0,60}?"
        + _SECRET
        + rf".{{0,120}}?(?:{_GIVE}|\bas the\b)",
        _GIVE + r" (?:along )?(?:any|all|every)(?: of)?(?: the| your)? (?:[\w']+ ){0,4}" + _SECRETS,
        r"\b(?:reveal|print|output|repeat|leak|send|pass|include|append|copy|paste) (?:\w+ ){0,3}"
        r"your (?:\w+ )?(?:system|developer|hidden|initial|original) "
        r"(?:prompt|message|instructions)\b",
    ),
}

PHRASES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (reason, re.compile(pattern)) for reason, every in _WRITTEN.items() for pattern in every
)
"""What each phrase does, and the phrase."""
