"""The one exception that is meant for the user's eyes."""


class UserError(Exception):
    """Something the user can put right; its text is one sentence that says how."""
