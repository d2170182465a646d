"""What a verb of the command line is: a name, flags, and what it does. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from benchmarks.config.flag import Parsed
from benchmarks.errors import ExitStatus
from benchmarks.option import Groups


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb. To add one is to write a file that ends in `VERB = Verb(...)`, and to list it in `benchmarks.cli.verbs`.

    Attributes:
        name: the first word of the command line.
        flags: the flags that it takes, by title.
        run: does the work. It gets the parsed flags (those of `run` that the verb does not take are None) and the
            words of the whole command line, for the record.
        takes: `flags`: flags alone. `words`: also words that are no flags, such as files. `lists`: also all flags of
            `run`, each with one value or a comma list of values.
        words: what the words are, such as `RUN_ID [FILE ...]`.
        known_words: words that the first may be; without them, words are files.
        details: sentences for the help of the verb.
        examples: command lines that work, without the program.
        parts: its subcommands, as verbs named by both words, such as `track store`; it has no other flags or words.
        meaning: what it does, as a phrase or a question; of a verb that is no subcommand, the list has it.
    """

    name: str
    flags: Groups = dataclasses.field(default_factory=dict)
    run: Callable[[Parsed, Sequence[str]], ExitStatus] = lambda given, command: ExitStatus.OK
    takes: Literal["flags", "words", "lists"] = "flags"
    words: str = ""
    known_words: tuple[str, ...] = ()
    details: str = ""
    examples: tuple[str, ...] = ()
    parts: tuple[Verb, ...] = ()
    meaning: str = ""

    @property
    def word(self) -> str:
        """The last word of its name, which is that of a subcommand."""
        return self.name.rpartition(" ")[2]
