# SPDX-License-Identifier: Apache-2.0
"""A SlotStore whose look-ups never wait, as UcmfsTier needs it.

A mapped index answers from memory. Any other may wait for whom it asks, and
belongs to its asker's thread: Answers stand for it here.
"""

from __future__ import annotations

import errno
from typing import Any, Callable, Sequence

from .._pack import split_ids
from .answers import LATE_SECONDS, Answers
from .mount import Open
from .slots import SlotStore

ABSENT, THERE, UNKNOWN = range(3)
_GONE = (errno.ENOENT, errno.EBADMSG)  # a damaged one is removed


class TierStore(SlotStore):
    """See SlotStore."""

    _answers: Answers | None = None
    _answers_of: Open | None = None  # what they are answers of

    def verdicts(self, keys: Sequence[bytes]) -> bytes:
        """Of each key ABSENT, THERE, or UNKNOWN: to be asked for again."""
        if self._waiting() is None:
            return bytes((self.has(keys[0]),)) if len(keys) == 1 \
                else self.lookup(keys)
        ids, none = self.ids_of(keys), bytes(len(keys))
        found, unknown = self._ask(lambda index: index.lookup(ids),
                                   (none, none))
        if unknown == none and not self._avoid:
            return found
        return bytes(
            UNKNOWN if unsure else
            THERE if there and not self._avoid.has_now(id) else ABSENT
            for id, there, unsure in zip(split_ids(ids), found, unknown))

    def _waiting(self) -> Open | None:
        """What is open, where look-ups wait."""
        here = self._link.now
        return None if here is None or here.asker is None else here

    def _ask(self, look: Callable[[Any], Any], absent: Any) -> Any:
        here = self._waiting()
        if here is None:
            return super()._ask(look, absent)
        return super()._ask(lambda _: look(self._answers_in(here)), absent)

    def _answers_in(self, here: Open) -> Answers:
        if self._answers is None or self._answers_of is not here:
            assert here.asker is not None
            self._forget()
            self._answers_of = here
            self._answers = Answers(
                self.mount, here.indexes[0].lookup, here.asker,
                self._deadline_ms / 1000 or LATE_SECONDS)
        return self._answers

    def _forget(self) -> None:
        if self._answers is not None:
            self._answers.end()
        self._answers = self._answers_of = None

    def _settle(self, one: Any, key: bytes, id: bytes, outcome: Any) -> bool:
        moved = super()._settle(one, key, id, outcome)
        if self._answers is not None:
            if outcome.ok and not outcome.refused:
                self._answers.learn(id, id not in self._avoid)
            elif one.is_load and outcome.err in _GONE:
                self._answers.learn(id, False)
        return moved

    def close(self) -> bool:
        self._forget()
        return super().close()
