# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Bounds of two windows of a trace: most of its middle, without nine of its times. The files: lines of `-F time,event` of `--itrace=pe`,
# and lines of `-F time,ip`.
#
# No PSB is in or near what is left out: behind one perf 7.3 goes on with the time from which it has gone forward, see
# Documentation/upstream.

/psb:/ {
	psb[++psbs] = $1 + 0
	next
}

/^ *[0-9.]*: *[0-9a-f]*$/ && $1 != time[times] {
	time[++times] = $1
}

# Whether a PSB is in or near the gap that begins at this time.
function is_near(left,  n) {
	for (n = 1; n <= psbs; n++)
		if (time[left - 9] + 0 <= psb[n] && psb[n] <= time[left + 19] + 0)
			return 1
	return 0
}

END {
	from = int(times / 5)
	to = int(times * 4 / 5)
	middle = int(times * 2 / 5)
	for (left = middle; left + 19 < to && is_near(left); left++)
		;
	if (left + 19 >= to)
		for (left = middle; left > from && is_near(left); left--)
			;
	for (n = split(from " " left " " (left + 10) " " to, bounds); n; n--)
		line = substr(time[bounds[n]], 1, length(time[bounds[n]]) - 1) (line == "" ? "" : " ") line
	print line
}
