"""What comes from outside this machine: services, the Hub, git repositories; and whether they answer."""

from .server import Server, share_left
from .network import unreachable, where_reachable, without_network
from .commits import (
    UNKNOWN,
    commit_of,
    hub_error,
    hub_name,
    hub_row,
    named_commit,
    pinned,
    recorded_commit,
    resolve,
    revision_label,
)
from .folders import check_weights, hub_folder, local_folder, package_folder
from .git import git_folder

__all__ = [
    'Server',
    'share_left',
    'unreachable',
    'where_reachable',
    'without_network',
    'UNKNOWN',
    'commit_of',
    'hub_error',
    'hub_name',
    'hub_row',
    'named_commit',
    'pinned',
    'recorded_commit',
    'resolve',
    'revision_label',
    'check_weights',
    'hub_folder',
    'local_folder',
    'package_folder',
    'git_folder',
]
