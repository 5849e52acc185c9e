/* The native starter, a library and a program in one file; see starter.py.
 *
 * As a library it makes a process without a copy of its parent, which does what must happen before
 * the task's own program, the same steps as `_become` in spawn.py: at once in the parent's memory
 * (`start`), or as this program, in memory of its own (`launch`). The error pipe is closed by the
 * exec of the task's program, or told "<stage>\0<errno>". It needs no C library, because an exec of
 * it must cost less than a fork of Python, and because a C library keeps state in the memory that is
 * shared.
 */

typedef unsigned long word;

/* Says which words it is given, so that one that was built for others is not used (STARTER-1). */
__attribute__((used)) static const char words_given[] = "holdfast-starter words: 2";

#if defined(__x86_64__)
enum { OPEN_AT = 257, WRITE = 1, DUP3 = 292, CHDIR = 80, EXECVE = 59, EXIT = 231, FCNTL = 72, RENAME_AT = 264,
       GETPPID = 110, LSTAT_AT = 262, PRCTL = 157, PRLIMIT = 302, SETSID = 112, SIGACTION = 13,
       SIGPROCMASK = 14, CLOSE = 3, CLOSE_RANGE = 436 };

static long call(long number, word a, word b, word c, word d) {
    long result;
    register word r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
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

/* long start(given, env, stack, count): the same clone, and `become` in the child. */
__asm__(".globl start\n.type start, @function\nstart:\n"
        "  mov %rdi, %r8\n  mov %rsi, %r9\n  mov %rdx, %rsi\n  mov %rcx, %rdx\n  mov $0x111, %edi\n"
        "  xor %r10d, %r10d\n  mov $56, %eax\n  syscall\n  test %rax, %rax\n  jnz 1f\n"
        "  xor %ebp, %ebp\n  mov %r8, %rdi\n  mov %r9, %rsi\n  call become\n"
        "1:\n  ret\n");
#elif defined(__aarch64__)
enum { OPEN_AT = 56, WRITE = 64, DUP3 = 24, CHDIR = 49, EXECVE = 221, EXIT = 94, FCNTL = 25, RENAME_AT = 38,
       GETPPID = 173, LSTAT_AT = 79, PRCTL = 167, PRLIMIT = 261, SETSID = 157, SIGACTION = 134,
       SIGPROCMASK = 135, CLOSE = 57, CLOSE_RANGE = 436 };

static long call(long number, word a, word b, word c, word d) {
    register long x8 __asm__("x8") = number;
    register word x0 __asm__("x0") = a;
    register word x1 __asm__("x1") = b;
    register word x2 __asm__("x2") = c;
    register word x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return (long)x0;
}

__asm__(".globl _start\n.hidden _start\n_start:\n  mov x29, #0\n  mov x0, sp\n  bl begin\n");

__asm__(".globl launch\n.type launch, %function\nlaunch:\n"
        "  mov x9, x0\n  mov x10, x1\n  mov x1, x3\n  mov x0, #0x111\n  mov x3, #0\n  mov x4, #0\n"
        "  mov x8, #220\n  svc 0\n  cbnz x0, 1f\n"
        "  mov x0, x9\n  mov x1, x10\n  mov x8, #221\n  svc 0\n"
        "  neg w0, w0\n  str w0, [sp]\n  mov x0, #127\n  mov x8, #94\n  svc 0\n"
        "1:\n  ret\n");

__asm__(".globl start\n.type start, %function\nstart:\n"
        "  mov x9, x0\n  mov x10, x1\n  mov x1, x2\n  mov x11, x3\n  mov x0, #0x111\n  mov x2, #0\n"
        "  mov x3, #0\n  mov x4, #0\n  mov x8, #220\n  svc 0\n  cbnz x0, 1f\n"
        "  mov x29, #0\n  mov x0, x9\n  mov x1, x10\n  mov x2, x11\n  bl become\n"
        "1:\n  ret\n");
#else
#error "no system call numbers for this machine: Holdfast forks in Python instead"
#endif

enum { AT_CWD = -100, NO_FOLLOW = 0x100, CLOEXEC_FLAG = 02000000, SET_FD = 2,
       PDEATHSIG = 1, NOFILE = 7, LOCKS = 10, SET_MASK = 2, SIGNALS = 64, SIGSET_BYTES = 8,
       LOG_FLAGS = 01 | 02000 | 0100 | CLOEXEC_FLAG, FAILED = 127,
       PATH_BYTES = 4096, NOT_THERE = 2, NO_ACCESS = 13, NO_FOLDER = 20 };

/* QUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ and SYS wait for the exec, because an older kernel
 * that writes a core ends all processes that share its memory. */
#define BIT(number) (1ul << ((number) - 1))
static const word DUMPS = BIT(3) | BIT(4) | BIT(5) | BIT(6) | BIT(7) | BIT(8) | BIT(11) | BIT(24) | BIT(25) | BIT(31);

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

/* The pipe that a log is written through takes the place of the log, which is only made. */
static void make_log(word errors, const char *stage, const char *path, const char *pipe, word where) {
    if (!*pipe) {
        put_in(errors, stage, path, LOG_FLAGS, where);
        return;
    }
    long fd = open_file(path, LOG_FLAGS);
    check(errors, stage, fd);
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

/* Let the empty file that lies ready beside a log that is not there become it. */
static void take_ready(const char *path) {
    static const char suffix[] = ".ready";
    char ready[PATH_BYTES + sizeof suffix];
    word at = 0;
    for (; path[at]; at++) {
        if (at == PATH_BYTES) return;
        ((volatile char *)ready)[at] = path[at];
    }
    for (word i = 0; i < sizeof suffix; i++) ((volatile char *)ready)[at + i] = suffix[i];
    if (!is_there(path)) call(RENAME_AT, (word)AT_CWD, (word)ready, (word)AT_CWD, (word)path);
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

/* Take the steps, and become the program. A path is given as "+path"; "" is none, and "*path" a log
 * that may lie ready. In memory that is shared with the parent nothing is written but this stack. */
__attribute__((visibility("hidden"), used)) void become(char **given, char **env, word count) {
    if (count < 17) call(EXIT, 0, 0, 0, 0); /* only asked whether it can be run */
    char *death = given[2], *parent = given[3], *oom = given[8], *group = given[9];
    char *cwd = given[10], *out = given[11], *err = given[12];
    char *out_pipe = given[13], *err_pipe = given[14];
    word candidates = number(given[15]);

    word errors = number(given[1]);
    if (*death) {
        check(errors, "prepare", call(PRCTL, PDEATHSIG, number(death), 0, 0));
        if ((word)call(GETPPID, 0, 0, 0, 0) != number(parent)) leave();
    }
    call(SETSID, 0, 0, 0, 0);
    if (*out_pipe) check(errors, "stdout", call(DUP3, number(out_pipe), 1, 0, 0));
    if (*err_pipe) check(errors, "stderr", call(DUP3, number(err_pipe), 2, 0, 0));
    call(FCNTL, errors, SET_FD, 1, 0);
    if (errors > 3) call(CLOSE_RANGE, 3, errors - 1, 0, 0);
    call(CLOSE_RANGE, errors + 1, 0xFFFFFFFF, 0, 0);
    word handler[4], none = 0, dumps = DUMPS; /* the kernel's sigaction: SIG_DFL, no flags, no mask */
    for (word i = 0; i < 4; i++) ((volatile word *)handler)[i] = 0;
    for (word n = 1; n <= SIGNALS; n++) call(SIGACTION, n, (word)handler, 0, SIGSET_BYTES);
    call(SIGPROCMASK, SET_MASK, (word)&dumps, 0, SIGSET_BYTES);
    if (*given[4]) check(errors, "prepare", limit(NOFILE, given[4], given[5]));
    if (*given[6]) limit(LOCKS, given[6], given[7]); /* only root may raise a lower one */
    if (*oom) write_file("/proc/self/oom_score_adj", oom); /* an ordinary user may not lower it */
    if (*group) check(errors, "group", write_file(group + 1, "0"));
    if (*cwd) check(errors, "cwd", call(CHDIR, (word)(cwd + 1), 0, 0, 0));
    put_in(errors, "stdin", "/dev/null", CLOEXEC_FLAG, 0);
    if (*out == '*') take_ready(out + 1);
    if (*out) make_log(errors, "stdout", out + 1, out_pipe, 1);
    if (*err) make_log(errors, "stderr", err + 1, err_pipe, 2);
    call(SIGPROCMASK, SET_MASK, (word)&none, 0, SIGSET_BYTES);
    exec_first(errors, given + 16, candidates, given + 16 + candidates, env);
}

__attribute__((visibility("hidden"), used)) void begin(word *stack) {
    word count = stack[0];
    char **given = (char **)(stack + 1);
    become(given, given + count + 1, count);
}
