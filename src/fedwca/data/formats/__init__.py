"""Readers of folders of images and of files of arrays."""
