"""What can go wrong while a local stack is brought up."""


class StackError(Exception):
    """A part of the local stack could not be started, reached or stopped.

    The message is one sentence for a person: what happened, where, and what to do about it.
    """
