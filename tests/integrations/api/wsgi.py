"""For a web server with the API, in a process of its own."""

from __future__ import annotations

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
