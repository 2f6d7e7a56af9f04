INSTALLED_APPS = ["django_delayq", "cafe"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
DELAYQ = {"REDIS": "redis://127.0.0.1:1/0"}  # nobody listens there
ROOT_URLCONF = "cafe.views"
SECRET_KEY = "tests"
USE_TZ = True
TIME_ZONE = "UTC"
