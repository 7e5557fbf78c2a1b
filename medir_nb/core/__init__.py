"""Errors, files, settings, the console and the network."""

import lazy_loader

_NAMES = {
    'errors': ['MedirError', 'NothingToMeasure', 'boundary', 'cause_of', 'check', 'nearest'],
    'files': [
        'atomic_folder', 'atomic_path', 'canonical', 'encoding_of', 'file_fingerprint', 'fingerprint',
        'json_mapping', 'lock', 'not_utf8', 'parse_json', 'read_json', 'read_text', 'write_json',
    ],
    'places': [
        'at_home', 'checkpoint_folder', 'checkpoint_names', 'checkpoint_record', 'find_root', 'follows_home', 'home',
        'offline', 'slug', 'tell_run',
    ],
    'settings': ['check_row', 'parse_options', 'read_yaml', 'registry', 'rows'],
    'console': [
        'Prose', 'is_secret', 'note', 'paced', 'progress', 'redact', 'run_command', 'to_markdown', 'waiting',
    ],
    'guard': ['is_private'],
    'private': ['go_private', 'guarded_script', 'nothing_leaves', 'private_line', 'private_report', 'refusal_in'],
    'hardware': ['concurrently', 'machine', 'output_of', 'seed_everything', 'versions'],
    'server': ['Server', 'share_left'],
    'network': ['unreachable', 'where_reachable', 'without_network'],
    'commits': [
        'UNKNOWN', 'commit_of', 'hub_error', 'hub_name', 'hub_row', 'named_commit', 'pinned', 'recorded_commit',
        'resolved_commit', 'revision_label',
    ],
    'hub_folders': ['check_weights', 'hub_folder', 'local_folder', 'package_folder'],
    'git': ['git_folder'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
