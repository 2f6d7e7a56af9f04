"""For the web server of the benchmark of the API."""

from __future__ import annotations

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
