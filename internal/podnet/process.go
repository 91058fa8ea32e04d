package podnet

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// maxPID is the highest process ID of Linux (PID_MAX_LIMIT of include/linux/threads.h).
const maxPID = 1 << 22

// ProcessNetNS returns the path to a process's network namespace, for runtimes that name no other path. It leads elsewhere as soon as
// the process has ended and its PID is used again: ask the runtime again before each use.
func ProcessNetNS(pid int64) (string, error) {
	if pid <= 0 || pid > maxPID {
		return "", fmt.Errorf("pid %d is not a process", pid)
	}
	return "/proc/" + strconv.FormatInt(pid, 10) + "/ns/net", nil
}

// OfProcess reports whether NetNS is a path as ProcessNetNS returns it.
func (s Sandbox) OfProcess() bool {
	ok, err := filepath.Match("/proc/[0-9]*/ns/net", filepath.Clean(s.NetNS))
	return ok && err == nil
}
