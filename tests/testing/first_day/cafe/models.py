from uuid import uuid4

from django.db import models


class Order(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid4)
    state = models.CharField(max_length=10, default="pending")
