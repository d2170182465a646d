"""Masks what looks like a secret in text: values after telling names, what signs in to an address, known tokens.

Every expression takes linear time, since the text of a record may come from anywhere.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

# Stands for what was not recorded.
MASK = "***"
# A name with one of these in it, without regard to case and separators, has a secret value: PGPASSWORD, authToken.
_TELLING = re.compile(
    "PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN(?!I[SZ])|CREDENTIAL|AUTHORI[SZ]ATION|COOKIE|^BEARER$|PWD$"
    "|(?:API|ACCESS|ACCOUNT|PRIVATE|SIGNING|MASTER|SHARED|STORAGE|CLIENT|SSH|LICENSE)KEY"
)
# So has one with one of these as a word: api_key, and not monkey or --xla_disable_hlo_passes.
_SECRET_WORDS = frozenset("KEY KEYS PASS PWD AUTH SIG SIGNATURE PAT JWT CREDS".split())
_WORD = re.compile("[A-Z]++(?![a-z])|[A-Z]?[a-z]++|[A-Z]")
_NAME = re.compile(r"(?<![\w.-])-*+[\w.-]++")
_FLAG = re.compile(r"-++[\w.-]++")
# Between a name and its value: `=`, `=>` as in Ruby, or `:` as in a header, in YAML and in JSON.
_ASSIGNS = re.compile(r"""["']?(?:[ \t]*+=>[ \t]*+|=|[ \t]++=[ \t]*+|[ \t]*+(:)(?!//|:)[ \t]*+)""")
_BLANKS = re.compile(r"[ \t]++")
# A backslash before a quote is of the text around the value.
_VALUE = re.compile(r"""(?:"[^"\n]*+"|'[^'\n]*+'|\\(?!["'])|[^\s"'\\])++""")
_VALUE_IN_QUERY = re.compile(r"""(?:\\(?!["'])|[^\s"'\\&])++""")
_VALUE_OF_HEADER = re.compile(r""""[^"\n]*+"|'[^'\n]*+'|[^\n"']++""")
# How tokens begin that show by their form what they are: of GitHub, GitLab, Hugging Face, OpenAI, Slack, AWS, Google.
# A part of each is as long as `_TOKEN_LETTERS`, and has more than lower-case letters.
_TOKEN_BEGINS = (
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "sk-"),
    *("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "AKIA", "ASIA", "AIza"),
)
_TOKEN_LETTERS = 12
_MAYBE_TOKEN = re.compile(r"(?<![\w-])[Aghsx][\w-]++")
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]++\.eyJ[\w.-]++")
_UNSPACED = re.compile(r"\S++")
_AUTHORITY = re.compile(r"(?<=//)[^/?#,]*+")


def without_secrets(words: Sequence[str]) -> list[str]:
    """Returns the words of a command with `MASK` for values that look like secrets, by the names before them.

    A name with a word such as KEY, TOKEN, SECRET, PASSWORD or AUTH, in any case and many without a separator, has a
    secret value: after `=`, after `:` as in a header, or as the next word after a flag. What signs in to an address is
    a secret as well, and so are tokens of services in their known forms.
    """
    masked: list[str] = []
    follows_flag = False
    for word in words:
        if follows_flag and not word.startswith("--"):
            masked.append(MASK)
        else:
            masked.append(_without_secrets(word))
        follows_flag = _is_flag_of_secret(word)
    return masked


@functools.lru_cache(maxsize=4096)  # the commands of 100,000 records have few words
def _without_secrets(word: str) -> str:
    return _without_logins(_without_values(_without_value_of_flag(word), _names_secret))


@functools.lru_cache(maxsize=4096)
def _is_flag_of_secret(word: str) -> bool:
    return _FLAG.fullmatch(word) is not None and _names_secret(word, is_header=False)


def without_passwords(text: str) -> str:
    """Returns text with `MASK` for what signs in to addresses, and for values after words like password and token."""
    return _without_logins(_without_values(text, lambda name, is_header: not is_header and _is_telling(name)))


def _without_value_of_flag(word: str) -> str:
    # The value is masked to the end of the word, unless a further flag stands in it.
    name = _FLAG.match(word)
    if not name or word[name.end() :][:1] != "=" or " -" in word or not _names_secret(name[0], is_header=False):
        return word
    return f"{name[0]}={MASK}"


def _without_values(text: str, names_secret: Callable[[str, bool], bool]) -> str:
    parts, done = [], 0
    for name in _NAME.finditer(text):
        if name.start() < done:
            continue
        assigns = _ASSIGNS.match(text, name.end())
        is_header = bool(assigns and assigns[1])
        if assigns is None and (name[0].startswith("-") or name[0].lower() == "bearer"):
            assigns = _BLANKS.match(text, name.end())
        if assigns is None or not names_secret(name[0], is_header):
            continue
        if is_header:
            value = _VALUE_OF_HEADER.match(text, assigns.end())
        elif name.start() > 0 and text[name.start() - 1] in "?&":
            value = _VALUE_IN_QUERY.match(text, assigns.end())
        else:
            value = _VALUE.match(text, assigns.end())
        if value:
            parts += [text[done : assigns.end()], MASK]
            done = value.end()
    return "".join([*parts, text[done:]])


def _names_secret(name: str, is_header: bool) -> bool:
    # `config_key: 1` is no header, and `X-Auth-Key: 1` is one.
    words = _WORD.findall(name) if not is_header or "-" in name.lstrip("-") else []
    return _is_telling(name) or any(word.upper() in _SECRET_WORDS for word in words)


def _is_telling(name: str) -> bool:
    return _TELLING.search("".join(filter(str.isalnum, name)).upper()) is not None


def _without_logins(text: str) -> str:
    text = _JWT.sub(MASK, _MAYBE_TOKEN.sub(_without_token, text))
    return _UNSPACED.sub(lambda part: _without_user(part[0]), text) if "@" in text else text


def _without_token(found: re.Match[str]) -> str:
    parts = found[0].replace("-", "_").split("_") if found[0].startswith(_TOKEN_BEGINS) else ()
    is_token = any(len(part) >= _TOKEN_LETTERS and not (part.isalpha() and part.islower()) for part in parts)
    return MASK if is_token else found[0]


def _without_user(text: str) -> str:
    """Returns text without blanks, which may hold addresses, without their users and passwords.

    A password may hold a slash or another @, so where there is one, all to the last @ is masked.
    """
    last = text.rfind("@")
    if "//" not in text:
        begin = max(text.rfind(mark, 0, max(0, last)) for mark in "=,'\"(<") + 1
        is_password = ":" in text[begin + 1 : max(0, last)] and "/" not in text[begin : max(0, last)]
        return f"{text[:begin]}{MASK}{text[last:]}" if is_password else text
    parts, done = [], 0
    for authority in _AUTHORITY.finditer(text):
        user, at, host = authority[0].rpartition("@")
        has_password = ":" in user if at else ":" in host and not host.rpartition(":")[2].isdecimal()
        end = last if has_password else authority.start() + len(user) if at else -1
        if done <= authority.start() < end:
            parts += [text[done : authority.start()], MASK]
            done = end
    return "".join([*parts, text[done:]])
