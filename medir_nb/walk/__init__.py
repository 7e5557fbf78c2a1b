"""From a reader's own documents to a verdict: what each step of the walk reads, and what it leaves."""

from .folder import Walk, WalkSettings
from .personal import PersonalData
from .look import Look, look

__all__ = ['Walk', 'WalkSettings', 'PersonalData', 'Look', 'look']
