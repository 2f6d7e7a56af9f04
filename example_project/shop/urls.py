"""The shop's addresses."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "shop"
urlpatterns = [
    path("", views.home, name="home"),
    path("buy/", views.buy, name="buy"),
    path("orders/<int:pk>/", views.order, name="order"),
    path("orders/<int:pk>/pay/", views.pay, name="pay"),
    path("orders/<int:pk>/extend/", views.extend, name="extend"),
    path("orders/<int:pk>/race/", views.race, name="race"),
    path("races/", views.races, name="races"),
]
