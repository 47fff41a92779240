"""Names and JSON configs: unifit.names, unifit.config, unifit.registry and unifit.errors.unknown_name."""

import copy
import json

import numpy as np
import pytest

from unifit.config import Configurable, deserialize, serialize
from unifit.errors import ArgumentError, UnifitError, UnknownNameError, unknown_name
from unifit.names import register_serializable, snake_case
from unifit.registry import Registry

toys = Registry("toy kind")


@toys.register("circle")
class RoundThing(Configurable):
    def __init__(self, radius=1.0, *, color=None, inner=None):
        self.radius, self.color, self.inner = radius, color, inner


@toys.register
class NeedsSize(Configurable):
    def __init__(self, size):
        self.size = size


@toys.register
def doubled(x):
    return 2 * x


@register_serializable(package="tests")
class Variadic(Configurable):
    def __init__(self, first, *rest, **named):
        self.first, self.rest, self.named = first, rest, named


@register_serializable(package="tests")
class KerasStyle(Configurable):
    def __init__(self, inner, size):
        self.inner, self.size = inner, size

    def get_config(self):
        return {**super().get_config(), "size": (self.size, np.float32(0.5))}

    @classmethod
    def from_config(cls, config):
        return cls(config["inner"], config["size"][0])


class Unregistered(Configurable):
    def __init__(self, size=0):
        self.size = size


def round_trip(value, **kwargs):
    return deserialize(json.loads(json.dumps(serialize(value), allow_nan=False)), **kwargs)


@pytest.mark.parametrize("name", ["circle", "round_thing", "RoundThing", "roundthing", "ROUND_THING"])
def test_get_accepts_every_spelling(name):
    assert type(toys.get(name)) is RoundThing


def test_get_returns_objects_functions_and_none_as_they_are():
    thing = RoundThing(2.0)
    assert toys.get(thing) is thing
    assert toys.get("doubled") is doubled
    assert toys.get(doubled) is doubled
    assert toys.get(None) is None
    assert type(toys.get(RoundThing)) is RoundThing


@pytest.mark.parametrize("name", ["RoundThing", "circle", "unifit.toy_kind>RoundThing"])
def test_get_builds_from_config(name):
    assert toys.get({"class": name, "config": {"radius": 3.0}}).radius == 3.0


def test_get_unknown_name_suggests_nearest():
    with pytest.raises(UnknownNameError, match=r"Unknown toy kind 'cirle'; did you mean 'circle'\? Known: 'circle', "):
        toys.get("cirle")


def test_get_by_name_of_class_with_arguments_says_what_it_needs():
    with pytest.raises(ArgumentError, match=r"needs size: pass NeedsSize\(size=\.\.\.\)"):
        toys.get("needs_size")


@pytest.mark.parametrize("wrong", [3, 1.5, [1], {"class_name": "RoundThing", "config": {}}])
def test_get_refuses_what_is_no_identifier(wrong):
    with pytest.raises(ArgumentError, match="toy kind"):
        toys.get(wrong)


def test_registering_a_taken_alias_is_refused():
    class Other:
        pass

    with pytest.raises(ArgumentError, match="'circle' is taken by .*RoundThing"):
        toys.register(Other, "circle")


def test_registering_the_same_definition_again_replaces_it():
    def define():
        @register_serializable(package="tests")
        class Redefined(Configurable):
            pass

        return Redefined

    first, second = define(), define()
    assert first is not second
    assert type(round_trip(first())) is second


def test_registering_another_object_under_a_full_name_is_refused():
    with pytest.raises(ArgumentError, match=r"'tests>Variadic' is registered for .*Variadic already"):
        register_serializable(package="tests", name="Variadic")(doubled)


VALUES = [
    None,
    True,
    3,
    -0.5,
    "text",
    [1, [2.5, None]],
    (1, (2, [3])),
    {"a": (1, 2), "b": {}},
    {1: 0.5, "x": [1]},
    {"tuple": [1]},
    {"class": "x", "config": {}},
    {"dict": 1},
    float("inf"),
    -float("inf"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_round_trip_through_strict_json(value):
    back = round_trip(value)
    assert back == value and type(back) is type(value)


def test_nan_round_trips():
    assert np.isnan(round_trip(float("nan")))


@pytest.mark.parametrize(
    "array", [np.arange(6, dtype="float32").reshape(2, 3), np.zeros((0, 3), "int16"), np.array(2.5)]
)
def test_array_round_trips_with_shape_and_dtype(array):
    back = round_trip(array)
    assert back.dtype == array.dtype and back.shape == array.shape
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("scalar", [np.float32(0.1), np.int64(3), np.bool_(True)])
def test_numpy_scalar_becomes_the_python_number(scalar):
    assert serialize(scalar) == scalar.item() and type(serialize(scalar)) is type(scalar.item())


def test_dtype_becomes_its_name():
    assert serialize([np.dtype("float16"), np.float32]) == ["float16", "float32"]


def test_config_holds_only_the_arguments_given():
    assert RoundThing().get_config() == {}
    assert serialize(RoundThing(2.0)) == {"class": "unifit.toy_kind>RoundThing", "config": {"radius": 2.0}}


def test_nested_objects_and_functions_round_trip():
    back = round_trip(RoundThing(color=(1, 2), inner=[RoundThing(3.0, inner=doubled)]))
    assert back.color == (1, 2)
    assert back.inner[0].radius == 3.0
    assert back.inner[0].inner is doubled


def test_variadic_arguments_round_trip():
    back = round_trip(Variadic(1, 2, 3, name="n"))
    assert (back.first, back.rest, back.named) == (1, (2, 3), {"name": "n"})


def test_own_get_config_and_from_config_are_used():
    back = round_trip(KerasStyle(RoundThing(4.0), 7))
    assert back.inner.radius == 4.0 and back.size == 7


def test_from_config_inverts_get_config():
    thing = RoundThing(2.0, inner=RoundThing(3.0))
    assert RoundThing.from_config(thing.get_config()).inner.radius == 3.0


def test_from_config_with_unknown_argument_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown argument of RoundThing 'radios'; did you mean 'radius'"):
        RoundThing.from_config({"radios": 1})


def test_wrong_constructor_call_keeps_pythons_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        RoundThing(size=1)


def test_copies_keep_the_config():
    assert copy.deepcopy(RoundThing(2.0)).get_config() == {"radius": 2.0}


def test_constructor_arguments_survive_a_base_with_new_of_its_own():
    class Base:
        def __new__(cls, *args, **kwargs):
            return super().__new__(cls)

    class Both(Configurable, Base):
        def __init__(self, size):
            self.size = size

    assert Both(3).get_config() == {"size": 3}


def test_unregistered_class_is_saved_by_bare_name_and_loaded_by_custom_objects():
    value = serialize(Unregistered(3))
    assert value == {"class": "Unregistered", "config": {"size": 3}}
    assert deserialize(value, custom_objects={"Unregistered": Unregistered}).size == 3
    assert deserialize([{"tuple": [value]}], {"Unregistered": Unregistered})[0][0].size == 3


def test_loading_an_unregistered_class_names_both_ways_out():
    value = json.loads(json.dumps(serialize(RoundThing(inner=Unregistered(3)))))
    with pytest.raises(UnknownNameError, match="'Unregistered'.*register_serializable.*custom_objects={'Unregistered'"):
        deserialize(value)


def test_class_saved_before_it_was_registered_is_found_by_its_bare_name():
    class Late(Configurable):
        pass

    value = serialize(Late())
    register_serializable(package="tests")(Late)
    assert value["class"] == "Late"
    assert type(deserialize(value)) is Late


def test_a_dotted_path_is_never_imported():
    with pytest.raises(UnknownNameError, match="not registered"):
        deserialize({"class": "os.path>join", "config": {}})
    with pytest.raises(UnknownNameError, match="not registered"):
        deserialize({"function": "subprocess.run"})


def loose_function(x):
    return x


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: x, r"RoundThing\(inner=\.\.\.\) holds <function .*a function with a name of its own"),
        (loose_function, "decorate 'loose_function' with @unifit.register_serializable"),
        (object(), "holds a object, which has no JSON form"),
        (np.zeros(1 << 17), "array of shape"),
        (np.array([np.nan]), "finite"),
    ],
)
def test_what_no_config_could_load_is_refused_on_saving(value, message):
    with pytest.raises(ArgumentError, match=message):
        serialize(RoundThing(inner=value))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MeanSquaredError", "mean_squared_error"),
        ("L1L2", "l1_l2"),
        ("AdamW", "adam_w"),
        ("Conv2DTranspose", "conv2d_transpose"),
    ],
)
def test_snake_case(name, expected):
    assert snake_case(name) == expected


def test_unknown_name_without_near_match_lists_all():
    error = unknown_name("loss", "zzz", ["mse", "mae"])
    assert isinstance(error, (UnifitError, ValueError))
    assert str(error) == "Unknown loss 'zzz'. Known: 'mae', 'mse'."


def test_unknown_name_with_empty_registry_says_so():
    assert str(unknown_name("loss", "mse", [])) == "Unknown loss 'mse'. No loss is registered."
