// What the lab asks of liburcu, with its inline functions.
#define _LGPL_SOURCE
#define RCU_MEMBARRIER
#include <stdlib.h>
#include <sched.h>
#include <urcu.h>

static unsigned long value = 1;
static unsigned long *current = &value;

struct counted {
    struct rcu_head head;
    unsigned long number;
};

static unsigned long dropped;

static void load(void)
{
    unsigned long *seen = rcu_dereference(current);
    // As Rust's black_box: the pointer is put where it could be read.
    __asm__ __volatile__("" : : "r"(&seen) : "memory");
}

void lab_enter_thread(void) { rcu_register_thread(); }
void lab_leave_thread(void) { rcu_unregister_thread(); }

#if defined(__x86_64__) || defined(__i386__)
#define NOPS "16"
#else
#define NOPS "4"
#endif

// As `place!` in placement.rs.
#define COPY(at) \
    __attribute__((noinline)) static unsigned long sections_##at(unsigned long pairs) \
    { \
        unsigned long sum = 0; \
        __asm__ __volatile__(".p2align 6\n.rept " #at " * " NOPS "\nnop\n.endr"); \
        for (unsigned long i = 0; i < pairs; i++) { \
            rcu_read_lock(); \
            sum += *rcu_dereference(current); \
            rcu_read_unlock(); \
        } \
        return sum; \
    }
COPY(0)
COPY(1)
COPY(2)
COPY(3)

unsigned long lab_read(unsigned long pairs, int nested, int placement)
{
    static unsigned long (*const copies[])(unsigned long) = {sections_0, sections_1, sections_2, sections_3};
    unsigned long sum;
    if (nested)
        rcu_read_lock();
    sum = copies[placement](pairs);
    if (nested)
        rcu_read_unlock();
    return sum;
}

void lab_lock(void) { rcu_read_lock(); load(); }
void lab_unlock(void) { rcu_read_unlock(); }
void lab_synchronize(void) { synchronize_rcu(); }

// Returns 0 where this version of liburcu (before 0.14) has no grace periods to poll.
int lab_poll(void)
{
#if __has_include(<urcu/urcu-poll.h>)
    struct urcu_gp_poll_state state = start_poll_synchronize_rcu();
    while (!poll_state_synchronize_rcu(state))
        sched_yield();
    return 1;
#else
    return 0;
#endif
}

static void drop_counted(struct rcu_head *head)
{
    free(caa_container_of(head, struct counted, head));
    uatomic_inc(&dropped);
}

// Returns how many were given up; fewer where memory ran out.
unsigned long lab_callbacks(unsigned long values)
{
    unsigned long given = 0;
    for (; given < values; given++) {
        struct counted *counted = malloc(sizeof(*counted));
        if (!counted)
            break;
        counted->number = given;
        call_rcu(&counted->head, drop_counted);
    }
    rcu_barrier();
    return given;
}
