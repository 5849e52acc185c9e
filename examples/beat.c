/* A beat from C: one datagram that says how far the work is (docs/guides/beats.md). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

void beat(long step) {
    static int fd = -1;
    const char *task = getenv("HOLDFAST_TASK"), *path = getenv("HOLDFAST_BEAT_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char text[256];
    if (!task || !path || (fd < 0 && (fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)) return;
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    int size = snprintf(text, sizeof text, "{\"task\":\"%s\",\"step\":%ld}", task, step);
    sendto(fd, text, size, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&to, sizeof to);
}
