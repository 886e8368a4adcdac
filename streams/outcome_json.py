"""The compiled reader of outcomes: plain JSON to columns, all else marked odd.

It takes a strict part of JSON and is sure of what it takes: flat objects in which a comma or a colon is
followed by one space at most, strings of unescaped ASCII, numbers of digits and a point. Whatever is not of
that part, or breaks a bound of the schema, makes the record odd, and odd records are for
``schemas.projections`` to judge: nothing is said here of what is wrong with one.

Keys, bounds and causes come as a table, the *grammar*, from ``streams.outcome_columns``: numba keeps compiled
code for as long as this file is not touched, whatever becomes of others (touch it after a change to one of
the compiled functions that it imports). The parsers pass addresses (``streams.raw_memory``) and read on until
a byte says stop, without a look at where the value ends: what follows it is the count of its headers, 2 as a
byte, which no text of theirs goes past, and then a header longer than two words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streams.name_table import intern, same, sound
from streams.raw_memory import byte_at, compiled, lowest_byte, put_real, put_word, real_at, word_at
from streams.record_scan import END, HEADERS_START, OFFSET, VALUE_LENGTH, VALUE_START

POOL, INSTANCE, BOOT, REGION, ENTRY_REGION, CAUSE, AT_MS, OUTPUT, WASTED, TTFT, TPOT, QUEUE, WITHIN = range(
    13
)
DEADLINE, WORK = 13, 14
"""Entries of the grammar: the fields of an event, the names first."""
FIRST_CAUSE = 20
"""The fields of the envelope follow those of the event, and then the causes."""
EVENT_KEYS, ENVELOPE_KEYS, CAUSE_TEXTS = range(3)
"""Heads of the grammar: the entries that a text may be, by its length."""
TEXT_BYTES = 16
"""Keys and causes may be as long as this."""
HEAD_WORDS, FIRST_ENTRY, ENTRY_WORDS = TEXT_BYTES + 1, 64, 16
LOW, HIGH, NEXT, BIT, KIND, LEAST, MOST, NULLABLE, VALUE, LENGTH = range(10)
"""Words of an entry: its text, where the next as long is, its bit, what its value must be, and that value.
Where means in bytes from the word that says it, 0 for nowhere. The value of a text is its address."""
TEXT, NAMED, WHOLE, REAL, FLAG, LIST = range(6)
"""Kinds of values: strings, one of the causes, integers, decimals, booleans, the events."""
COUNT, ODD, FULL, COLUMNS, ROOM, NAME_TABLE, MOST_EVENTS, EVENT_NEEDS, ENVELOPE_NEEDS = range(9)
FIRST_MS, LAST_MS, FIRST_OFFSET = range(9, 12)
"""Words of the state: events and odd records found, and what ran full; where the columns are, and how many
events fit; where the names are (``streams.name_table``); most events of an envelope; bits that must be known;
what times and offsets to take."""
ENOUGH, MORE_NAMES, MORE_EVENTS = range(3)
"""What may run full."""

_BRACE, _UNBRACE, _BRACKET, _UNBRACKET = 0x7B, 0x7D, 0x5B, 0x5D
_QUOTE, _COMMA, _COLON, _SPACE, _POINT, _ZERO, _NINE, _N = 0x22, 0x2C, 0x3A, 0x20, 0x2E, 0x30, 0x39, 0x6E
_TRUE, _FALSE, _NULL = (int.from_bytes(text, "little") for text in (b"true", b"false", b"null"))
_ONES, _HIGHS = 0x0101010101010101, -0x7F7F7F7F7F7F7F80
_QUOTES, _SLASHES, _SPACES = _ONES * 0x22, _ONES * 0x5C, _ONES * 0x20
_MASKS = np.array([*((1 << (8 * size)) - 1 for size in range(8)), -1], np.int64)
_FOUR, _FIVE = 2**32 - 1, 2**40 - 1
_MOST_DIGITS = 18
_EXACT = 2**53
_POWERS = np.array([float(10**power) for power in range(23)])  # all of them exact
_SPLIT, _SURE = 2.0**27 + 1.0, 2.0**-50


@compiled(forceinline=True)
def _string_end(at: Any) -> Any:
    """The closing quote of the string whose text begins at ``at``; 0 where the text is not plain.

    Eight bytes at a time (https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord): a false mark can
    only follow a true one.
    """
    while True:
        word = word_at(at)
        quote, slash = word ^ _QUOTES, word ^ _SLASHES
        found = ((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | (word - _SPACES) | word
        marks = found & _HIGHS
        if marks != 0:
            break
        at += 8
    at += lowest_byte(marks)
    return at if byte_at(at) == _QUOTE else 0


@compiled(forceinline=True)
def _find(at: Any, length: Any, head: Any) -> Any:
    """The entry of this text, or 0."""
    if length > TEXT_BYTES:
        return 0
    low, high = word_at(at), 0
    if length > 8:
        high = word_at(at + 8) & _MASKS[length - 8]
    else:
        low &= _MASKS[length]
    entry = head + 8 * length
    step = word_at(entry)
    while step != 0:
        entry += step
        if word_at(entry + 8 * LOW) == low and word_at(entry + 8 * HIGH) == high:
            return entry
        entry += 8 * NEXT
        step = word_at(entry)
    return 0


@compiled(forceinline=True)
def _digits(at: Any, number: Any) -> Any:
    """``(next, number)``: digits, put behind those of a number; of too many the number says nothing."""
    digit = byte_at(at) - _ZERO
    while 0 <= digit <= 9:
        number = number * 10 + digit
        at += 1
        digit = byte_at(at) - _ZERO
    return at, number


@compiled(forceinline=True)
def _whole(at: Any) -> Any:
    """``(next, number)`` of an integer without a sign; next is 0 where there is none."""
    end, number = _digits(at, 0)
    digits = end - at
    if digits == 0 or digits > _MOST_DIGITS or (digits > 1 and byte_at(at) == _ZERO):
        return 0, 0
    return end, number


@compiled()
def _decimal(at: Any) -> Any:
    """``(next, number)`` of a decimal without sign or exponent; next is 0 where it is not sure of it."""
    start = at
    at, number = _whole(start)
    if at == 0:
        return 0, 0.0
    if byte_at(at) != _POINT:
        return at, _quotient(number, 0)
    point = at
    at, number = _digits(point + 1, number)
    places = at - point - 1
    first = start
    while byte_at(first) == _ZERO or byte_at(first) == _POINT:
        first += 1
    if places == 0 or places >= len(_POWERS) or at - first > _MOST_DIGITS:
        return 0, 0.0
    return at, _quotient(number, places)


@compiled(forceinline=True)
def _quotient(number: Any, power: Any) -> Any:
    """The double nearest to ``number / 10**power``, or NaN where rounding can't be told.

    Below 2**53 both are exact, and so is the rounding of their quotient (Clinger 1990). Above, what is
    left of the division is found exactly (Dekker 1971); one too close to the middle of two doubles is NaN.
    """
    divisor = _POWERS[power]
    high = float(number)
    quotient = high / divisor
    if number <= _EXACT:
        return quotient
    low = float(number - int(high))
    wide, broad = _SPLIT * quotient, _SPLIT * divisor
    quotient_high, divisor_high = wide - (wide - quotient), broad - (broad - divisor)
    quotient_low, divisor_low = quotient - quotient_high, divisor - divisor_high
    product = quotient * divisor
    error = quotient_high * divisor_high - product
    error += quotient_high * divisor_low
    error += quotient_low * divisor_high
    error += quotient_low * divisor_low
    fix = ((high - product - error) + low) / divisor
    nearest = quotient + fix * (1.0 + _SURE)
    return nearest if nearest == quotient + fix * (1.0 - _SURE) else np.nan


@compiled(forceinline=True)
def _literal(at: Any) -> Any:
    """``(next, value)`` of true (1), false (0) or null (-1); next is 0 where there is none of them."""
    word = word_at(at)
    if word & _FOUR == _TRUE:
        return at + 4, 1
    if word & _FOUR == _NULL:
        return at + 4, -1
    if word & _FIVE == _FALSE:
        return at + 5, 0
    return 0, 0


@compiled()
def _skip(at: Any) -> Any:
    """The end of a scalar that nobody wants; 0 where it is not plain."""
    if byte_at(at) == _QUOTE:
        end = _string_end(at + 1)
        return end + 1 if end else 0
    end, _ = _digits(at, 0)
    if end == at:
        return _literal(at)[0]
    if end - at > 1 and byte_at(at) == _ZERO:
        return 0
    if byte_at(end) == _POINT:
        point = end
        end, _ = _digits(point + 1, 0)
        if end == point + 1:
            return 0
    return end


@compiled()
def _member(at: Any, head: Any) -> Any:
    """``(value, entry)``: where the value of the member at ``at`` begins, or 0; its key's entry, or 0."""
    if byte_at(at) != _QUOTE:
        return 0, 0
    end = _string_end(at + 1)
    if end == 0 or byte_at(end + 1) != _COLON:
        return 0, 0
    return end + (3 if byte_at(end + 2) == _SPACE else 2), _find(at + 1, end - at - 1, head)


@compiled()
def _value(at: Any, entry: Any, grammar: Any) -> Any:
    """``(next, bit)``: the scalar value of a known key, its entry's bit or, for null, 0; next is 0 if odd."""
    kind, least, most = word_at(entry + 8 * KIND), word_at(entry + 8 * LEAST), word_at(entry + 8 * MOST)
    bit = word_at(entry + 8 * BIT)
    if byte_at(at) == _N and word_at(entry + 8 * NULLABLE) != 0:
        return _literal(at)[0], 0
    if kind <= NAMED:
        end = _string_end(at + 1)
        if byte_at(at) != _QUOTE or end == 0:
            return 0, 0
        text, size = at + 1, end - at - 1
        if kind == NAMED:
            cause = _find(text, size, grammar + 8 * HEAD_WORDS * CAUSE_TEXTS)
            if cause == 0:
                return 0, 0
            text = word_at(cause + 8 * VALUE)
        elif not least <= size <= most:
            return 0, 0
        put_word(entry + 8 * VALUE, text)
        put_word(entry + 8 * LENGTH, size)
        return end + 1, bit
    if kind == REAL:
        end, decimal = _decimal(at)
        put_real(entry + 8 * VALUE, decimal)
        return end if least <= decimal <= most else 0, bit
    if kind == WHOLE:
        end, number = _whole(at)
    else:
        end, number = _literal(at)
    put_word(entry + 8 * VALUE, number)
    return end if least <= number <= most else 0, bit


@compiled(forceinline=True)
def _next_member(at: Any) -> Any:
    """What follows the comma at ``at``; 0 where there is none."""
    if byte_at(at) != _COMMA:
        return 0
    return at + (2 if byte_at(at + 1) == _SPACE else 1)


@compiled()
def _event(at: Any, grammar: Any) -> Any:
    """``(next, known)``: read the object at ``at``; known has the bits of fields that have a value."""
    seen = known = 0
    if byte_at(at) != _BRACE:
        return 0, 0
    at += 1
    while at != 0:
        at, entry = _member(at, grammar + 8 * HEAD_WORDS * EVENT_KEYS)
        if at == 0:
            return 0, 0
        if entry == 0:
            at = _skip(at)
        else:
            bit = word_at(entry + 8 * BIT)
            if seen & bit != 0:
                return 0, 0
            seen |= bit
            at, bit = _value(at, entry, grammar)
            known |= bit
        if at == 0:
            return 0, 0
        if byte_at(at) == _UNBRACE:
            return at + 1, known
        at = _next_member(at)
    return 0, 0


@compiled()
def _take(at: Any, grammar: Any, state: Any, count: Any) -> Any:
    """The end of the event, now in the columns at ``count``; -1 where odd, -2 where there is no room."""
    at, known = _event(at, grammar)
    needs = word_at(state + 8 * EVENT_NEEDS)
    if at == 0 or known & needs != needs:
        return -1
    entries, size = grammar + 8 * FIRST_ENTRY, 8 * ENTRY_WORDS
    at_ms = word_at(entries + size * AT_MS + 8 * VALUE)
    if not word_at(state + 8 * FIRST_MS) <= at_ms <= word_at(state + 8 * LAST_MS):
        return -1
    names = word_at(state + 8 * NAME_TABLE)
    entered, region = entries + size * ENTRY_REGION, entries + size * REGION
    if known >> REGION & 1 == 0:
        put_word(region + 8 * VALUE, word_at(entered + 8 * VALUE))
        put_word(region + 8 * LENGTH, word_at(entered + 8 * LENGTH))
    elif not sound(word_at(entered + 8 * VALUE), word_at(entered + 8 * LENGTH), names):
        return -1
    for field in (INSTANCE, BOOT):
        if known >> field & 1 == 0:
            put_word(entries + size * field + 8 * LENGTH, 0)
    name = intern(entries + 8 * VALUE, size, names)
    if name < 0:
        return name
    column, step = word_at(state + 8 * COLUMNS) + 8 * count, 8 * word_at(state + 8 * ROOM)
    put_word(column, name)
    for field in (CAUSE, WITHIN, AT_MS, OUTPUT, WASTED, DEADLINE):
        column += step
        put_word(column, word_at(entries + size * field + 8 * VALUE) if known >> field & 1 else -1)
    for field in (TTFT, TPOT, QUEUE, WORK):
        column += step
        put_real(column, real_at(entries + size * field + 8 * VALUE) if known >> field & 1 else np.nan)
    return at


@compiled()
def _take_all(at: Any, grammar: Any, state: Any, count: Any) -> Any:
    """``(end, count)``: as ``_take``, for the events of the envelope at ``at``."""
    seen, last = 0, count + word_at(state + 8 * MOST_EVENTS)
    if byte_at(at) != _BRACE:
        return -1, count
    at += 1
    while at > 0:
        at, entry = _member(at, grammar + 8 * HEAD_WORDS * ENVELOPE_KEYS)
        if at == 0:
            break
        if entry == 0:
            at = _skip(at)
        else:
            bit = word_at(entry + 8 * BIT)
            if seen & bit != 0:
                break
            seen |= bit
            if word_at(entry + 8 * KIND) != LIST:
                at, _ = _value(at, entry, grammar)
            elif byte_at(at) != _BRACKET:
                break
            else:
                at += 1
                while at > 0 and count < last:
                    at = _take(at, grammar, state, count)
                    count += 1
                    if at < 0:
                        return at, count
                    if byte_at(at) == _UNBRACKET:
                        break
                    at = _next_member(at)
                if at > 0:
                    at = at + 1 if byte_at(at) == _UNBRACKET else 0
        if at > 0:
            if byte_at(at) == _UNBRACE:
                return at + 1 if seen == word_at(state + 8 * ENVELOPE_NEEDS) else -1, count
            at = _next_member(at)
    return -1, count


@compiled(cache=True, nogil=True)
def read_records(
    data: Any, records: Any, begin: int, single: Any, batch: Any, grammar: Any, state: Any, odd: Any
) -> int:
    """Read records of a scan's table from ``begin`` on; returns the first that was not, for lack of room.

    ``single`` and ``batch`` are the header sections of an event and of an envelope. Events go to the columns,
    places of odd records to ``odd``.
    """
    base, one, many = data.ctypes.data, single.ctypes.data, batch.ctypes.data
    state_at, grammar_at = state.ctypes.data, grammar.ctypes.data
    state[FULL] = ENOUGH
    for number in range(begin, len(records)):
        if records[number, OFFSET] < state[FIRST_OFFSET]:
            continue
        count = state[COUNT]
        if count + state[MOST_EVENTS] > state[ROOM]:
            state[FULL] = MORE_EVENTS
            return number
        at, end = base + records[number, VALUE_START], base + records[number, HEADERS_START]
        size = base + records[number, END] - end
        if records[number, VALUE_LENGTH] <= 0:
            at = -1
        elif size == len(single) and same(end, one, size):
            at = _take(at, grammar_at, state_at, count)
            count += 1
        elif size == len(batch) and same(end, many, size):
            at, count = _take_all(at, grammar_at, state_at, count)
        else:
            at = -1
        if at == -2:
            state[FULL] = MORE_NAMES
            return number
        if at == end:
            state[COUNT] = count
        else:
            odd[state[ODD]] = number
            state[ODD] += 1
    return len(records)
