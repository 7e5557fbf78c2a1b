"""From a reader's own documents to a verdict: what each step of the walk reads, and what it leaves."""

from .folder import Walk, WalkSettings

__all__ = ['Walk', 'WalkSettings']
