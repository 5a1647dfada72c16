// SPDX-License-Identifier: GPL-2.0 OR MIT
// Exceptions through several frames, with destructors on the way; virtual calls; containers.
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct Guard {
	int &count;
	~Guard() { count++; }
};

struct Shape {
	virtual ~Shape() = default;
	virtual int area() const = 0;
};
struct Square : Shape {
	int side;
	explicit Square(int side) : side(side) {}
	int area() const override { return side * side; }
};
struct Bad : Shape {
	int area() const override { throw std::runtime_error("no area"); }
};

static int depth(const Shape &shape, int n, int &count)
{
	Guard guard{count};
	return n == 0 ? shape.area() : depth(shape, n - 1, count) + 1;
}

int main()
{
	std::map<std::string, int> caught;
	int count = 0, sum = 0;

	for (int i = 0; i < 8; i++) {
		try {
			if (i % 3 == 2)
				sum += depth(Bad(), i, count);
			else if (i % 3 == 1)
				throw i;
			else
				sum += depth(Square(i), i, count);
		} catch (const std::exception &error) {
			caught[error.what()]++;
		} catch (int) {
			caught["int"]++;
		}
	}
	for (const auto &[what, times] : caught)
		std::printf("%s %d\n", what.c_str(), times);
	std::printf("%d %d\n", sum, count);
	return 0;
}
