"""The version of Holdfast: on the floor below all that names it."""

VERSION = "0.1.0"
