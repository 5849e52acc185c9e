/* What runs inside the containers of these tests: one small static program, so that an image needs nothing else.

   inside WORD ARGS…   each word below is one way to behave */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void nap(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left)) {}
}

static void polite(int number) {
    (void)number;
    static const char word[] = "took TERM\n";
    if (write(1, word, sizeof word - 1) < 0) _exit(99);
    _exit(5);
}

static int show(int argc, char **argv) {
    char folder[4096];
    printf("cwd %s\n", getcwd(folder, sizeof folder));
    printf("uid %d\n", (int)getuid());
    for (int i = 0; i < argc; i++) printf("arg %s\n", argv[i]);
    for (char **word = environ; *word; word++) printf("env %s\n", *word);
    return 0;
}

static int beat(int times, double pause) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("HOLDFAST_BEAT_SOCKET"), *task = getenv("HOLDFAST_TASK");
    if (!path || !task || strlen(path) >= sizeof to.sun_path) return 3;
    strcpy(to.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    for (int step = 1; step <= times; step++) {
        char text[512];
        int size = snprintf(text, sizeof text, "{\"task\":\"%s\",\"step\":%d}", task, step);
        if (sendto(fd, text, size, 0, (struct sockaddr *)&to, sizeof to) != size) { perror("beat"); return 4; }
        nap(pause);
    }
    return 0;
}

static void save(int number) {
    (void)number;
    nap(0.7);
    static const char word[] = "saved\n";
    if (write(1, word, sizeof word - 1) < 0) _exit(99);
    _exit(0);
}

/* As a shell does: waits for its program, knows nothing of TERM, and goes on with the next line. */
static int script(void) {
    pid_t program = fork();
    if (program == 0) {
        signal(SIGTERM, save);
        puts("up");
        for (;;) nap(1000);
    }
    waitpid(program, NULL, 0);
    nap(30);
    puts("the next line ran");
    return 0;
}

/* A checkpoint without the library: a file that is renamed when it is whole. The first attempt saves and fails, the next reads. */
static int resume(void) {
    const char *given = getenv("HOLDFAST_CHECKPOINT"), *folder = getenv("HOLDFAST_CHECKPOINT_OUT");
    char text[4096], name[4096], part[4096];
    if (given) {
        int fd = open(given, O_RDONLY);
        ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (size < 0) { perror(given); return 4; }
        text[size] = 0;
        printf("goes on from step %s with %s\n", getenv("HOLDFAST_CHECKPOINT_STEP"), text);
        return 0;
    }
    if (!folder) return 5;
    snprintf(part, sizeof part, "%s/.part", folder);
    snprintf(name, sizeof name, "%s/checkpoint.7", folder);
    int fd = open(part, O_WRONLY | O_CREAT, 0600);
    if (fd < 0 || write(fd, "all of it", 9) != 9 || fsync(fd) || rename(part, name)) { perror(part); return 6; }
    return 3;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, "exit")) { puts("leaving"); return atoi(argv[2]); }
    if (!strcmp(word, "signal")) { signal(atoi(argv[2]), SIG_DFL); raise(atoi(argv[2])); pause(); }
    if (!strcmp(word, "show")) return show(argc - 2, argv + 2);
    if (!strcmp(word, "polite")) { signal(SIGTERM, polite); puts("up"); for (;;) nap(1000); }
    if (!strcmp(word, "deaf")) { signal(SIGTERM, SIG_IGN); puts("up"); for (;;) nap(1000); }
    if (!strcmp(word, "plain")) { puts("up"); for (;;) nap(1000); }
    if (!strcmp(word, "beat")) return beat(atoi(argv[2]), 0.05);
    if (!strcmp(word, "wedge")) { int failed = beat(3, 0.05); if (failed) return failed; puts("wedged"); for (;;) nap(1000); }
    if (!strcmp(word, "wedge-once")) {
        int failed = beat(3, 0.05);
        if (failed) return failed;
        if (!strcmp(getenv("HOLDFAST_ATTEMPT"), "1")) for (;;) nap(1000);
        puts("whole");
        return 0;
    }
    if (!strcmp(word, "count")) {
        int lines = atoi(argv[2]);
        for (int i = 0; i < lines; i++) { printf("line %d\n", i); nap(0.02); }
        return atoi(argv[3]);
    }
    if (!strcmp(word, "write")) {
        int fd = open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0644);
        return fd < 0 || write(fd, argv[3], strlen(argv[3])) < 0 ? 6 : 0;
    }
    if (!strcmp(word, "saver")) { signal(SIGTERM, save); puts("up"); for (;;) nap(1000); }
    if (!strcmp(word, "script")) return script();
    if (!strcmp(word, "resume")) return resume();
    if (!strcmp(word, "eat")) {  /* with an argument: once USR1 has come */
        sigset_t cue;
        sigemptyset(&cue);
        sigaddset(&cue, SIGUSR1);
        sigprocmask(SIG_BLOCK, &cue, NULL);
        for (int number = 0; argc > 2 && number != SIGUSR1;) sigwait(&cue, &number);
        for (;;) {
            char *page = malloc(1 << 20);
            if (!page) return 7;
            memset(page, 1, 1 << 20);
        }
    }
    if (!strcmp(word, "family")) {  /* a child in its own session that outlives its parent */
        if (fork() == 0) { setsid(); signal(SIGTERM, SIG_IGN); for (;;) nap(1000); }
        puts("up");
        for (;;) nap(1000);
    }
    fprintf(stderr, "no such word: %s\n", word);
    return 64;
}
