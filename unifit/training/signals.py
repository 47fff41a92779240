class Signals:
    received = None

    def __enter__(self):
        return self

    def __exit__(self, *a):
        pass


def end_of(number):
    return SystemExit(128 + number)
