"""One broker of librdkafka, which it has for tests: prints its address, and stays.

python -m tests.acceptance.mock_kafka
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Serve until this process is killed."""
    from confluent_kafka import Producer

    # The broker lives as long as the client that has it.
    client = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = client.list_topics(timeout=10).brokers.values()
    sys.stdout.write(f"{broker.host}:{broker.port}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
