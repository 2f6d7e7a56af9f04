from datetime import timedelta
import time
from django.db import connection
from django.utils import timezone
from django_delayq import sql_figures
from django_delayq.models import ArchivedMessage
from tests.sql.hands import *
from tests.sql.overview import *
from tests.conftest import *
def test_it(transactional_db):
    t=ArchivedMessage._meta.db_table
    old=timezone.now()-timedelta(days=3)
    for k in range(10):
        archived(20000, topic=f"t{k%4}", lateness_ms=3.0, finished_at=old if k<8 else timezone.now())
    with connection.cursor() as c:
        c.execute(f"ANALYZE {t}")
        q=sql_figures._LATENESS.format(archive=t, runs=200)
        for topic in ("t0","t3"):
            since=timezone.now()-timedelta(days=1)
            c.execute("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+q,[topic,since])
            print("\n".join(r[0] for r in c.fetchall()))
    b=time.perf_counter(); sql_figures.read([f"t{k}" for k in range(4)],0); print("read", (time.perf_counter()-b)*1000,"ms")
