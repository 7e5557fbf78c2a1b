"""A simulated cluster: nodes of Ray on this machine. Ray gives its dashboard's agent 15 seconds to start, which a busy machine does not
keep, so an agent that does nothing takes its place: nobody looks at a dashboard here."""

import contextlib, os, socket, sys
from pathlib import Path

AGENT = """
import os, sys, time
told = dict(word[2:].split('=', 1) for word in sys.argv[1:] if word.startswith('--') and '=' in word)
path = os.path.join(told['session-dir'], 'dashboard_agent_listen_port_' + told['node-id'])
with open(path + '.new', 'w') as file:
    file.write('-1')
os.replace(path + '.new', path)
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(1)
"""


def free_ports():
    names = 'metrics_agent_port', 'metrics_export_port', 'dashboard_agent_listen_port', 'runtime_env_agent_port'
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for each in sockets:
            each.bind(('127.0.0.1', 0))
        return dict(zip(names, (each.getsockname()[1] for each in sockets), strict=True))


@contextlib.contextmanager
def cluster_of(nodes, folder, cpus=1):
    "A cluster with so many nodes, and those that may be removed."
    import ray
    from ray._private import ray_constants, services
    from ray.cluster_utils import Cluster

    (agent := Path(folder) / 'agent.py').write_text(AGENT)
    command_of = services._build_python_executable_command_memory_profileable

    def light(component, *given, **named):
        is_agent = component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT
        return [sys.executable, '-S', str(agent)] if is_agent else command_of(component, *given, **named)

    services._build_python_executable_command_memory_profileable = light
    os.environ |= {'RAY_raylet_start_wait_time_s': '300', 'RAY_USAGE_STATS_ENABLED': '0'}
    os.environ['PYTHONPATH'] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    each = {'num_cpus': cpus, 'object_store_memory': 80 * 2**20, 'include_dashboard': False}
    cluster = Cluster(initialize_head=True, head_node_args=each | free_ports())
    try:
        yield cluster, [cluster.add_node(**each, **free_ports()) for _ in range(nodes - 1)]
    finally:
        ray.shutdown()
        cluster.shutdown()
        services._build_python_executable_command_memory_profileable = command_of
