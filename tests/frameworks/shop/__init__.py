"""A Django project and its application: a shop, whose orders are tasks."""
