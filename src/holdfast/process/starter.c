/* The native starter, a library and a program in one file; see starter.py.
 *
 * As a library it makes a process without a copy of its parent (`launch`), which execs this file at
 * once. As a program it does what must happen before the task's own program, the same steps as
 * `_become` in spawn.py. The error pipe is closed by the exec of the task's program, or told
 * "<stage>\0<errno>". It needs no C library, because an exec of it must cost less than a fork of
 * Python.
 *
 * The program may stay, as the keeper of the one that it starts (keeper.py): the parent that the
 * task sees and may kill, and what ends it where its lease is over and the guardian does not turn.
 */

typedef unsigned long word;

/* Says which words it is given, so that one that was built for others is not used (STARTER-1). */
__attribute__((used)) static const char words_given[] = "holdfast-starter words: 7";

#if defined(__x86_64__)
enum { OPEN_AT = 257, WRITE = 1, DUP3 = 292, CHDIR = 80, EXECVE = 59, EXIT = 231, FCNTL = 72,
       GETPPID = 110, LSTAT_AT = 262, PRCTL = 157, PRLIMIT = 302, SETSID = 112, SIGACTION = 13,
       SIGPROCMASK = 14, CLOSE = 3, CLOSE_RANGE = 436, CLONE = 56, WAIT4 = 61, KILL = 62, GETPID = 39,
       SIGTIMEDWAIT = 128, TIMER_CREATE = 222, TIMER_SETTIME = 223, GETTIME = 228, MMAP = 9, READ = 0,
       IOCTL = 16 };

static long call(long number, word a, word b, word c, word d) {
    long result;
    register word r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

static long map_shared(word bytes, word fd, word offset) {
    long result;
    register word r10 __asm__("r10") = 1; /* MAP_SHARED */
    register word r8 __asm__("r8") = fd;
    register word r9 __asm__("r9") = offset;
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)MMAP), "D"(0ul), "S"(bytes), "d"(3ul), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

__asm__(".globl _start\n.hidden _start\n_start:\n  xor %rbp, %rbp\n  mov %rsp, %rdi\n  and $-16, %rsp\n"
        "  call begin\n");

/* long launch(path, argv, env, stack): clone(CLONE_VM | SIGCHLD), and execve in the child, which
 * keeps everything in registers. Should that fail, the errno is left on its stack. */
__asm__(".globl launch\n.type launch, @function\nlaunch:\n"
        "  mov %rdi, %r8\n  mov %rsi, %r9\n  mov %rcx, %rsi\n  mov $0x111, %edi\n  xor %r10d, %r10d\n"
        "  mov $56, %eax\n  syscall\n  test %rax, %rax\n  jnz 1f\n"
        "  mov %r8, %rdi\n  mov %r9, %rsi\n  mov $59, %eax\n  syscall\n"
        "  neg %eax\n  mov %eax, (%rsp)\n  mov $127, %edi\n  mov $231, %eax\n  syscall\n"
        "1:\n  ret\n");
#elif defined(__aarch64__)
enum { OPEN_AT = 56, WRITE = 64, DUP3 = 24, CHDIR = 49, EXECVE = 221, EXIT = 94, FCNTL = 25,
       GETPPID = 173, LSTAT_AT = 79, PRCTL = 167, PRLIMIT = 261, SETSID = 157, SIGACTION = 134,
       SIGPROCMASK = 135, CLOSE = 57, CLOSE_RANGE = 436, CLONE = 220, WAIT4 = 260, KILL = 129, GETPID = 172,
       SIGTIMEDWAIT = 137, TIMER_CREATE = 107, TIMER_SETTIME = 110, GETTIME = 113, MMAP = 222, READ = 63,
       IOCTL = 29 };

static long call(long number, word a, word b, word c, word d) {
    register long x8 __asm__("x8") = number;
    register word x0 __asm__("x0") = a;
    register word x1 __asm__("x1") = b;
    register word x2 __asm__("x2") = c;
    register word x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return (long)x0;
}

static long map_shared(word bytes, word fd, word offset) {
    register long x8 __asm__("x8") = MMAP;
    register word x0 __asm__("x0") = 0;
    register word x1 __asm__("x1") = bytes;
    register word x2 __asm__("x2") = 3;
    register word x3 __asm__("x3") = 1; /* MAP_SHARED */
    register word x4 __asm__("x4") = fd;
    register word x5 __asm__("x5") = offset;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return (long)x0;
}

__asm__(".globl _start\n.hidden _start\n_start:\n  mov x29, #0\n  mov x0, sp\n  bl begin\n");

__asm__(".globl launch\n.type launch, %function\nlaunch:\n"
        "  mov x9, x0\n  mov x10, x1\n  mov x1, x3\n  mov x0, #0x111\n  mov x3, #0\n  mov x4, #0\n"
        "  mov x8, #220\n  svc 0\n  cbnz x0, 1f\n"
        "  mov x0, x9\n  mov x1, x10\n  mov x8, #221\n  svc 0\n"
        "  neg w0, w0\n  str w0, [sp]\n  mov x0, #127\n  mov x8, #94\n  svc 0\n"
        "1:\n  ret\n");
#else
#error "no system call numbers for this machine: Holdfast forks in Python instead"
#endif

enum { AT_CWD = -100, NO_FOLLOW = 0x100, CLOEXEC_FLAG = 02000000, SET_FD = 2,
       PDEATHSIG = 1, NOFILE = 7, LOCKS = 10, SET_MASK = 2, SIGNALS = 64, SIGSET_BYTES = 8,
       LOG_FLAGS = 01 | 02000 | 0100 | CLOEXEC_FLAG, FAILED = 127,
       NOT_THERE = 2, NO_ACCESS = 13, NO_FOLDER = 20,
       SIGKILL = 9, SIGALRM = 14, SIGCHLD = 17, BOOTTIME = 7, SUBREAPER = 36, SET_NAME = 15, CORE = 4,
       NO_HANG = 1, NO_CHILD = 10, PAGE_BYTES = 4096, SPACE_BYTES = 65536, TAKE_TERMINAL = 0x540E };

#define BIT(number) (1ul << ((number) - 1))

static word length(const char *text) {
    word n = 0;
    while (text[n]) n++;
    return n;
}

static word number(const char *text) {
    word n = 0;
    while (*text) n = n * 10 + (word)(*text++ - '0');
    return n;
}

static void leave(void) {
    for (;;) call(EXIT, FAILED, 0, 0, 0);
}

static void fail(word errors, const char *stage, long result) {
    char text[64];
    char digits[8];
    word at = 0, count = 0, code = (word)-result;
    while (stage[at]) { text[at] = stage[at]; at++; }
    text[at++] = 0;
    do { digits[count++] = (char)('0' + code % 10); code /= 10; } while (code && count < 8);
    while (count) text[at++] = digits[--count];
    call(WRITE, errors, (word)text, at, 0);
    leave();
}

static void check(word errors, const char *stage, long result) {
    if (result < 0) fail(errors, stage, result);
}

static long open_file(const char *path, word flags) {
    return call(OPEN_AT, (word)AT_CWD, (word)path, flags, 0600);
}

static long write_file(const char *path, const char *text) {
    long fd = open_file(path, 01 | CLOEXEC_FLAG);
    if (fd < 0) return fd;
    long result = call(WRITE, (word)fd, (word)text, length(text), 0);
    call(CLOSE, (word)fd, 0, 0, 0);
    return result;
}

static void put_in(word errors, const char *stage, const char *path, word flags, word where) {
    long fd = open_file(path, flags);
    check(errors, stage, fd);
    if ((word)fd == where) call(FCNTL, where, SET_FD, 0, 0);
    else check(errors, stage, call(DUP3, (word)fd, where, 0, 0));
}

/* Open the log of stdout. The pipe that it is written through takes its place, and it is only made:
 * the file shows that the start came so far. The log of stderr is then made with its first byte. */
static void make_log(word errors, const char *path, const char *pipe) {
    if (!*pipe) {
        put_in(errors, "stdout", path, LOG_FLAGS, 1);
        return;
    }
    long fd = open_file(path, LOG_FLAGS);
    check(errors, "stdout", fd);
    call(CLOSE, (word)fd, 0, 0, 0);
}

static long limit(word resource, const char *soft, const char *hard) {
    word pair[2];
    pair[0] = number(soft);
    pair[1] = number(hard);
    return call(PRLIMIT, 0, resource, (word)pair, 0);
}

static int is_there(const char *path) {
    char status[256];
    return call(LSTAT_AT, (word)AT_CWD, (word)path, (word)status, NO_FOLLOW) == 0;
}

/* Try each candidate as a shell does: pass over the missing, remember what may not be run. */
static void exec_first(word errors, char **candidates, word count, char **argv, char **env) {
    long remembered = -NOT_THERE;
    for (word i = 0; i < count; i++) {
        char *path = candidates[i];
        long result = call(EXECVE, (word)path, (word)argv, (word)env, 0);
        if (result == -NOT_THERE && is_there(path)) fail(errors, "interpreter", result);
        if (result == -NO_ACCESS) {
            if (count == 1 || is_there(path)) remembered = result;
        } else if (result != -NOT_THERE && result != -NO_FOLDER) {
            fail(errors, "exec", result);
        } else if (count == 1) {
            remembered = result;
        }
    }
    fail(errors, "exec", remembered);
}

/* ---- the keeper (keeper.py has the words of a slot) */

struct slot {
    volatile word deadline; /* nanoseconds of CLOCK_BOOTTIME; 0: none */
    volatile word pid;      /* of the task's first process */
    volatile word ended;    /* 1: the keeper has ended the task, at its deadline */
    volatile word passed;   /* 1: the task has ended, and its keeper ends as the task did */
};

/* End everything below: what loses its parent becomes ours, so the own children are all there is. */
static void end_children(word child, struct slot *slot) {
    static const char list[] = "/proc/thread-self/children";
    char text[4096];
    word pause[2] = {0, 10000000}, mask = BIT(SIGCHLD);
    slot->ended = 1;
    call(KILL, -child, SIGKILL, 0, 0);
    call(KILL, child, SIGKILL, 0, 0);
    while (call(WAIT4, (word)-1, 0, NO_HANG, 0) != -NO_CHILD) {
        long fd = open_file(list, CLOEXEC_FLAG);
        if (fd >= 0) {
            long got = call(READ, (word)fd, (word)text, sizeof text, 0);
            word pid = 0;
            for (long i = 0; i < got; i++) {
                if (text[i] >= '0' && text[i] <= '9') pid = pid * 10 + (word)(text[i] - '0');
                else if (pid) { call(KILL, pid, SIGKILL, 0, 0); pid = 0; }
            }
            call(CLOSE, (word)fd, 0, 0, 0);
        }
        call(SIGTIMEDWAIT, (word)&mask, 0, (word)pause, SIGSET_BYTES);
    }
}

/* End as the task did: its code, or its signal without a core of ours. */
static void end_as(word status) {
    word none[2] = {0, 0}, open = 0, number = status & 0x7f;
    if (number) {
        call(PRLIMIT, 0, CORE, (word)none, 0);
        call(KILL, (word)call(GETPID, 0, 0, 0, 0), number, 0, 0);
        call(SIGPROCMASK, SET_MASK, (word)&open, 0, SIGSET_BYTES);
    }
    for (;;) call(EXIT, number ? 128 + number : (status >> 8) & 0xff, 0, 0, 0);
}

static void set_alarm(word timer, word deadline) {
    word when[4];
    when[0] = when[1] = 0;
    when[2] = deadline / 1000000000;
    when[3] = deadline % 1000000000;
    call(TIMER_SETTIME, timer, 1, (word)when, 0);
}

/* Wait for the task's first process, pass on the signals that come here, keep the deadline. All are
 * blocked, and taken one by one. */
static void keep(word child, struct slot *slot, char **given, word count) {
    word info[16], all = ~0ul, timer = 0, armed = 0, now[2];
    unsigned int status = 0;
    int timer_id = 0;
    for (word i = 0; i < count; i++) /* what searches for the task's words is to find the task alone */
        for (word at = 0, n = length(given[i]); at < n; at++) ((volatile char *)given[i])[at] = 0;
    static const char name[] = "task-keeper"; /* no name of Holdfast: `pkill -STOP holdfast` is to leave it */
    for (word at = 0; at < sizeof name; at++) ((volatile char *)given[0])[at] = name[at];
    call(PRCTL, SET_NAME, (word)name, 0, 0);
    call(PRCTL, SUBREAPER, 1, 0, 0);
    call(CLOSE_RANGE, 0, 0xFFFFFFFF, 0, 0);
    if (call(TIMER_CREATE, BOOTTIME, 0, (word)&timer_id, 0) == 0) timer = 1;
    for (;;) {
        long found;
        while ((found = call(WAIT4, (word)-1, (word)&status, NO_HANG, 0)) > 0)
            if ((word)found == child) {
                slot->passed = 1;
                end_as(status);
            }
        word deadline = slot->deadline;
        if (deadline && timer) {
            call(GETTIME, BOOTTIME, (word)now, 0, 0);
            if (now[0] * 1000000000 + now[1] >= deadline) {
                end_children(child, slot);
                end_as(SIGKILL);
            }
            if (armed != deadline) set_alarm((word)timer_id, deadline);
            armed = deadline;
        }
        found = call(SIGTIMEDWAIT, (word)&all, (word)info, 0, SIGSET_BYTES);
        if (found == SIGALRM && ((int *)info)[2] == -2) armed = 0; /* SI_TIMER */
        else if (found > 0 && found != SIGCHLD) call(KILL, child, (word)found, 0, 0);
    }
}

/* Take the steps, and become the program. A path is given as "+path"; "" is none. */
static void become(char **given, char **env, word count) {
    if (count < 21) call(EXIT, 0, 0, 0, 0); /* only asked whether it can be run */
    char *death = given[2], *parent = given[3], *oom = given[8], *group = given[9];
    char *cwd = given[10], *out = given[11], *err = given[12];
    char *out_pipe = given[13], *err_pipe = given[14], *keeper = given[15];
    char *in = given[16], *in_pipe = given[17], *terminal = given[18];
    word candidates = number(given[19]);
    struct slot *slot = 0;

    word errors = number(given[1]);
    if (*keeper) { /* "<descriptor>:<offset>" of its slot */
        word fd = 0, offset = 0;
        char *at = keeper;
        while (*at != ':') fd = fd * 10 + (word)(*at++ - '0');
        offset = number(at + 1);
        word within = offset % SPACE_BYTES;
        long page = map_shared(SPACE_BYTES, fd, offset - within);
        check(errors, "prepare", page < 0 && page > -PAGE_BYTES ? page : 0);
        slot = (struct slot *)(page + (long)within);
    }
    if (*death) {
        check(errors, "prepare", call(PRCTL, PDEATHSIG, number(death), 0, 0));
        if ((word)call(GETPPID, 0, 0, 0, 0) != number(parent)) leave();
    }
    call(SETSID, 0, 0, 0, 0);
    if (*in_pipe) check(errors, "stdin", call(DUP3, number(in_pipe), 0, 0, 0));
    if (*out_pipe) check(errors, "stdout", call(DUP3, number(out_pipe), 1, 0, 0));
    if (*err_pipe) check(errors, "stderr", call(DUP3, number(err_pipe), 2, 0, 0));
    call(FCNTL, errors, SET_FD, 1, 0);
    if (errors > 3) call(CLOSE_RANGE, 3, errors - 1, 0, 0);
    call(CLOSE_RANGE, errors + 1, 0xFFFFFFFF, 0, 0);
    word handler[4], none = 0; /* the kernel's sigaction: SIG_DFL, no flags, no mask */
    for (word i = 0; i < 4; i++) ((volatile word *)handler)[i] = 0;
    for (word n = 1; n <= SIGNALS; n++) call(SIGACTION, n, (word)handler, 0, SIGSET_BYTES);
    call(SIGPROCMASK, SET_MASK, (word)&none, 0, SIGSET_BYTES);
    if (*given[4]) check(errors, "prepare", limit(NOFILE, given[4], given[5]));
    if (*given[6]) limit(LOCKS, given[6], given[7]); /* only root may raise a lower one */
    if (*oom) write_file("/proc/self/oom_score_adj", oom); /* an ordinary user may not lower it */
    if (*group) check(errors, "group", write_file(group + 1, "0"));
    if (slot) {
        word every = ~0ul, self = (word)call(GETPID, 0, 0, 0, 0);
        call(SIGPROCMASK, SET_MASK, (word)&every, 0, SIGSET_BYTES);
        long child = call(CLONE, SIGCHLD, 0, 0, 0);
        check(errors, "fork", child);
        if (child) {
            slot->pid = (word)child;
            keep((word)child, slot, given, count);
        }
        check(errors, "prepare", call(PRCTL, PDEATHSIG, SIGKILL, 0, 0));
        if ((word)call(GETPPID, 0, 0, 0, 0) != self) leave();
        call(SETSID, 0, 0, 0, 0);
        call(SIGPROCMASK, SET_MASK, (word)&none, 0, SIGSET_BYTES);
        slot->pid = (word)call(GETPID, 0, 0, 0, 0); /* before the exec tells that it runs */
    }
    if (*cwd) check(errors, "cwd", call(CHDIR, (word)(cwd + 1), 0, 0, 0));
    if (!*in_pipe) put_in(errors, "stdin", *in ? in + 1 : "/dev/null", CLOEXEC_FLAG, 0);
    if (*terminal) check(errors, "stdin", call(IOCTL, 0, TAKE_TERMINAL, 0, 0)); /* its input is one */
    if (*out) make_log(errors, out + 1, out_pipe);
    if (*err && !*err_pipe) put_in(errors, "stderr", err + 1, LOG_FLAGS, 2);
    exec_first(errors, given + 20, candidates, given + 20 + candidates, env);
}

__attribute__((visibility("hidden"), used)) void begin(word *stack) {
    word count = stack[0];
    char **given = (char **)(stack + 1);
    become(given, given + count + 1, count);
}
