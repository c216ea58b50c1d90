// The double pendulum of the works as a Siconos plugin: mass, smooth force and its derivatives, gaps and gradients.
// Siconos moves forces to the left: internal = -g(q, v). Matrices are stored by columns.

#include <cmath>

struct Pendulum {
    double m1, m2, l1, l2, g, wall;
};
static Pendulum p;

extern "C" {
void set_parameters(const Pendulum *values) { p = *values; }

void mass(unsigned, const double *q, double *m, unsigned, double *) {
    m[0] = (p.m1 + p.m2) * p.l1 * p.l1;
    m[1] = m[2] = p.m2 * p.l1 * p.l2 * std::cos(q[0] - q[1]);
    m[3] = p.m2 * p.l2 * p.l2;
}

void internal(double, unsigned, const double *q, const double *v, double *f, unsigned, double *) {
    const double coriolis = p.m2 * p.l1 * p.l2 * std::sin(q[0] - q[1]);
    f[0] = coriolis * v[1] * v[1] + (p.m1 + p.m2) * p.g * p.l1 * std::sin(q[0]);
    f[1] = -coriolis * v[0] * v[0] + p.m2 * p.g * p.l2 * std::sin(q[1]);
}

void internal_by_q(double, unsigned, const double *q, const double *v, double *a, unsigned, double *) {
    const double change = p.m2 * p.l1 * p.l2 * std::cos(q[0] - q[1]);
    a[0] = change * v[1] * v[1] + (p.m1 + p.m2) * p.g * p.l1 * std::cos(q[0]);
    a[1] = -change * v[0] * v[0];
    a[2] = -change * v[1] * v[1];
    a[3] = change * v[0] * v[0] + p.m2 * p.g * p.l2 * std::cos(q[1]);
}

void internal_by_v(double, unsigned, const double *q, const double *v, double *a, unsigned, double *) {
    const double coriolis = p.m2 * p.l1 * p.l2 * std::sin(q[0] - q[1]);
    a[0] = a[3] = 0;
    a[1] = -2 * coriolis * v[0];
    a[2] = 2 * coriolis * v[1];
}

void joint(unsigned, const double *q, unsigned, double *y, unsigned, double *) { y[0] = p.wall - p.l1 * std::sin(q[0]); }

void joint_by_q(unsigned, const double *q, unsigned, double *a, unsigned, double *) {
    a[0] = -p.l1 * std::cos(q[0]);
    a[1] = 0;
}

void tip(unsigned, const double *q, unsigned, double *y, unsigned, double *) {
    y[0] = p.wall - p.l1 * std::sin(q[0]) - p.l2 * std::sin(q[1]);
}

void tip_by_q(unsigned, const double *q, unsigned, double *a, unsigned, double *) {
    a[0] = -p.l1 * std::cos(q[0]);
    a[1] = -p.l2 * std::cos(q[1]);
}
}
