"Packaging: every field is read from settings.ini, the one place that states it."

from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

cfg = ConfigParser(delimiters=['='])
cfg.read('settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
extras = {key[: -len('_requirements')]: cfg[key].split() for key in cfg if key.endswith('_requirements')}

setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    keywords=cfg['keywords'].split(),
    author=cfg['author'],
    license='Apache-2.0',
    url=cfg['git_url'],
    long_description=Path('README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    classifiers=[
        'Development Status :: 3 - Alpha',
        'Programming Language :: Python :: 3',
        'Intended Audience :: Science/Research',
    ],
    packages=find_packages(include=['medir_nb*']),
    package_data={
        'medir_nb': [
            *('registry/*.yaml', 'registry/*.csv', 'registry/published/*', 'registry/independent/*'),
            *('registry/cassettes/*.jsonl', 'registry/web/*'),
        ]
    },
    python_requires=f'>={cfg["min_python"]}',
    install_requires=cfg['requirements'].split(),
    extras_require=extras,
    entry_points={'console_scripts': cfg['console_scripts'].split()},
    zip_safe=False,
)
