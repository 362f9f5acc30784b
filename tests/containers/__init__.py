"""`deploy/test-compose`: docker-compose.yml run for real, with podman, and tried to break.

Only the standard library, so that it runs before anything is installed. No image registry is asked: the bases are
made from Debian's packages, under the names that Dockerfile and docker-compose.yml use.
"""
