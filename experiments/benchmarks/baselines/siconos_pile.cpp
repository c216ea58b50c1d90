// The disks of the works in Siconos: a body of two coordinates each, an interaction for every pair given and every side
// of the box, MoreauJeanOSI with theta = 1/2, its LCP solver as it comes, one linearisation a step.
//
// Read are: disks, pairs, steps, h, e, g, radius, side; the coordinates; the pairs. Written are: seconds of all steps,
// largest KKT residual [m/s]; then position and velocity of every disk.

#include <SiconosKernel.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <vector>

using Clock = std::chrono::steady_clock;
using Body = std::shared_ptr<LagrangianLinearTIDS>;

// Gap of two disks. The normal is that at the beginning of the step, as in the scheme; Siconos would take it at a
// position that it predicts for the end.
class Pair : public LagrangianScleronomousR {
    Body one, two;
    double diameter;

  public:
    Pair(Body a, Body b, double diameter) : one(a), two(b), diameter(diameter) {}
    void checkSize(Interaction &) override {}
    void initialize(Interaction &) override { _jachq = std::make_shared<SimpleMatrix>(1, 4); }
    void computeh(const BlockVector &q, BlockVector &, SiconosVector &y) override {
        const double dx = q(2) - q(0), dy = q(3) - q(1);
        y.setValue(0, std::sqrt(dx * dx + dy * dy) - diameter);
    }
    void computeJachq(const BlockVector &, BlockVector &) override {
        const SiconosVector &a = one->qMemory().getSiconosVector(0), &b = two->qMemory().getSiconosVector(0);
        const double dx = b(0) - a(0), dy = b(1) - a(1), distance = std::sqrt(dx * dx + dy * dy);
        double *row = &(*_jachq)(0, 0);
        row[0] = -dx / distance;
        row[1] = -dy / distance;
        row[2] = dx / distance;
        row[3] = dy / distance;
    }
};

// max |min(w, A_aa L)| with w = A L + offset: a velocity
static double residual(LCP &lcp) {
    const unsigned m = lcp.getSizeOutput();
    if (m == 0) return 0;
    SiconosMatrix &a = *lcp.M()->defaultMatrix();
    const SiconosVector &offset = *lcp.q(), &impulse = *lcp.z();
    double worst = 0;
    for (unsigned i = 0; i < m; i++) {
        double w = offset(i);
        for (unsigned j = 0; j < m; j++) w += a(i, j) * impulse(j);
        worst = std::max(worst, std::abs(std::min(w, a(i, i) * impulse(i))));
    }
    return worst;
}

int main() {
    int disks, pairs, steps;
    double h, e, g, radius, side;
    std::cin >> disks >> pairs >> steps >> h >> e >> g >> radius >> side;
    auto model = std::make_shared<NonSmoothDynamicalSystem>(0., (steps + 1) * h);
    auto law = std::make_shared<NewtonImpactNSL>(e);
    auto weight = std::make_shared<SiconosVector>(2);
    weight->setValue(1, -g);
    std::vector<Body> bodies;
    for (int i = 0; i < disks; i++) {
        auto q = std::make_shared<SiconosVector>(2), v = std::make_shared<SiconosVector>(2);
        auto mass = std::make_shared<SimpleMatrix>(2, 2);
        double x, y;
        std::cin >> x >> y;
        q->setValue(0, x);
        q->setValue(1, y);
        mass->eye();
        bodies.push_back(std::make_shared<LagrangianLinearTIDS>(q, v, mass));
        bodies.back()->setFExtPtr(weight);
        model->insertDynamicalSystem(bodies.back());
    }
    for (int k = 0; k < pairs; k++) {
        int i, j;
        std::cin >> i >> j;
        auto gap = std::make_shared<Pair>(bodies[i], bodies[j], 2 * radius);
        model->link(std::make_shared<Interaction>(law, gap), bodies[i], bodies[j]);
    }
    if (!std::cin) {
        std::cerr << "input is incomplete\n";
        return 1;
    }
    for (auto &body : bodies)
        for (int axis = 0; axis < 2; axis++)
            for (int sign : {1, -1}) {
                auto row = std::make_shared<SimpleMatrix>(1, 2);
                auto at = std::make_shared<SiconosVector>(1);
                row->setValue(0, axis, sign);
                at->setValue(0, sign > 0 ? -radius : side - radius);
                auto gap = std::make_shared<LagrangianLinearTIR>(row, at);
                model->link(std::make_shared<Interaction>(law, gap), body);
            }
    auto lcp = std::make_shared<LCP>();
    auto times = std::make_shared<TimeDiscretisation>(0., h);
    auto simulation = std::make_shared<TimeStepping>(model, times, std::make_shared<MoreauJeanOSI>(0.5), lcp);
    simulation->setNewtonOptions(SICONOS_TS_LINEAR);

    double worst = 0;
    Clock::duration spent{};
    for (int k = 0; k < steps; k++) {
        auto begin = Clock::now();
        simulation->computeOneStep();
        spent += Clock::now() - begin;
        worst = std::max(worst, residual(*lcp));
        begin = Clock::now();
        simulation->nextStep();
        spent += Clock::now() - begin;
    }
    std::printf("%.9g %.9g\n", std::chrono::duration<double>(spent).count(), worst);
    for (auto &body : bodies) {
        const SiconosVector &q = *body->q(), &v = *body->velocity();
        std::printf("%.17g %.17g %.17g %.17g\n", q(0), q(1), v(0), v(1));
    }
}
