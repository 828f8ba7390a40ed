"""What the tests of charts share."""

import vl_convert


def drawn(chart):
    """The specification of a chart that Vega-Lite compiles and Vega draws."""
    spec = chart.to_dict()
    assert "<path" in vl_convert.vegalite_to_svg(spec)
    return spec


def holds(spec, slider, **values):
    """Whether a row has these values, and there is such a slider or menu."""
    names = [param["name"] for param in spec.get("params", [])]
    rows = [
        {key: row.get(key) for key in values} for row in spec["data"]["values"]
    ]
    return values in rows and (slider is None or slider in names)
