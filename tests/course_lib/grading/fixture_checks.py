"""The checks of the small chapter that the grader is tested with; its notebook imports them by path."""

from course_lib.grading.report import check


@check
def check_98_1(report, double):
    for x in (3, -1):
        report.equal(f"{x}: twice", double(x), 2 * x, mistakes={"when it is squared": x * x})


@check
def check_98_2(report, running_sums):
    report.equal("no values", running_sums([]), [])
    report.equal("four values", running_sums([1, 2, 3, 4]), [1, 3, 6, 10])


@check
def check_98_3(report, counter_class):
    counter = counter_class()
    report.equal("first call", counter(), 1)
    report.equal("second call", counter(), 2, mistakes={"the count is not kept.": 1})


def _doubling(number):
    """One more check of a doubling: the attacks need an exercise each."""

    def function(report, double):
        for x in (3, -1):
            report.equal(f"{x}: twice", double(x), 2 * x)

    function.__name__ = f"check_97_{number}"
    return check(function)


for _number in range(1, 31):
    globals()[f"check_97_{_number}"] = _doubling(_number)
