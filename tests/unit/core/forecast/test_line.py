from holdfast.core.forecast.line import count_ahead, order_line
from holdfast.core.placement.types import Share
from tests.unit.core.forecast.samples import make_host, make_job, make_outlook


def test_a_place_counts_the_jobs_of_all_queues_that_share_hosts() -> None:
    line = (make_job("a", queue="x"), make_job("b", queue="y"), make_job("c", queue="x"))
    shared = make_outlook(line=line, hosts=(make_host("h", 0),))
    assert count_ahead(shared, "c", "x") == 2
    apart = (make_host("h", 0, queues=frozenset("x")), make_host("g", 0, queues=frozenset("y")))
    assert count_ahead(make_outlook(line=line, hosts=apart), "c", "x") == 1


def test_a_job_within_its_projects_share_stands_before_those_that_borrow() -> None:
    line = (
        make_job("a", project="big"),
        make_job("b", project="big"),
        make_job("c", project="small"),
    )
    shares = {"big": Share(gpus=1), "small": Share(gpus=1)}
    outlook = make_outlook(line=line, hosts=(make_host("h", 0),), shares=shares)
    assert [job.job_id for job in order_line(outlook)] == ["a", "c", "b"]
    assert count_ahead(outlook, "c", "gpu") == 1


def test_a_job_below_the_read_part_of_the_line_has_no_place_in_it() -> None:
    assert count_ahead(make_outlook(hosts=(make_host("h", 0),)), "z", "gpu") is None
