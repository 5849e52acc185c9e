"""The ssh server of one session: `sshd -i` inside of its task, as the task's user.

Its keys come over the session's input before the first byte of ssh: the line of the user's public
key, the lines of the server's private key, and a line with a dot. They lie in a folder of this
session, which goes with it; the next session removes that of one that was killed. The host's own
server, keys and configuration are not touched.

The commands of its user get the environment of the session, because sshd begins with an empty one:
it is written down once (`env`), and read by the command that sshd is made to run (`enter`).
"""

SSH_SERVER = [
    "/bin/sh",
    "-c",
    r"""
umask 077
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
say() { echo "holdfast: $1" >&2; exit "${2:-127}"; }
sshd=$(command -v sshd) || say \
  "no sshd is installed where this job runs; add it to the host or the image: apt install openssh-server"
id -un >/dev/null 2>&1 || say \
  "user $(id -u) of this job has no name in /etc/passwd of its image, which sshd needs"
ours="${TMPDIR:-/tmp}/holdfast-ssh.$(uname -n)"
for old in "$ours".*; do  # of sessions that were killed
  pid=${old#"$ours".}
  if [ -O "$old" ] && ! kill -0 "${pid%%.*}" 2>/dev/null; then rm -rf "$old"; fi
done
place=$(mktemp -d "$ours.$$.XXXXXXXX") || say "no folder can be made for the keys" 1
trap 'rm -rf "$place"' EXIT
trap 'exit 143' HUP INT TERM
IFS= read -r line && printf '%s\n' "$line" >"$place/user.pub"
while IFS= read -r line && [ "$line" != . ]; do printf '%s\n' "$line"; done >"$place/host"
[ -s "$place/host" ] || say "the keys of this session did not arrive" 1
sftp=
for one in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec; do
  [ -x "$one/sftp-server" ] && sftp="Subsystem sftp $one/sftp-server"
done
folder=$PWD
unset SSH_AUTH_SOCK SSH_CONNECTION SSH_CLIENT SSH_TTY SSH_ORIGINAL_COMMAND TERM PWD OLDPWD line one ours old pid
export -p >"$place/env"
cat >"$place/enter" <<'END'
place=${0%/*}
. "$place/env"
cd "$(cat "$place/folder")" || exit 1
for one in "$SHELL" bash sh; do
  shell=$(command -v "$one") && [ -n "$shell" ] && break
done
export SHELL="$shell"
if [ -n "${SSH_ORIGINAL_COMMAND+x}" ]; then
  command=$SSH_ORIGINAL_COMMAND
  unset SSH_ORIGINAL_COMMAND
  exec "$shell" -c "$command"
fi
exec "$shell"
END
printf '%s\n' "$folder" >"$place/folder"
cat >"$place/config" <<END
HostKey $place/host
AuthorizedKeysFile $place/user.pub
ForceCommand exec /bin/sh $place/enter
StrictModes no
UsePAM no
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment no
PermitUserRC no
AllowTcpForwarding local
AllowStreamLocalForwarding local
X11Forwarding no
PrintMotd no
PrintLastLog no
PidFile none
LogLevel ERROR
$sftp
END
[ "$(id -u)" != 0 ] || [ -d /run/sshd ] || mkdir -p -m 755 /run/sshd
exec 3<&0
"$sshd" -i -e -f "$place/config" <&3 3<&- &
exec 3<&- </dev/null >/dev/null 2>&1  # a shell says how what it waits for was ended
wait $!
""",
]
