package podnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// SeeProcess returns an error unless this program can open a path of ProcessNetNS. For a process that it does not see, the error says
// what to do if the runtime says that the process runs.
func SeeProcess(path string) error {
	switch _, err := os.Stat(path); {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is not there: the runtime names no other path, and this program does not see the node's processes: "+
			"install with processFallback=true", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the runtime names no other path, and this program may not look into other processes: "+
			"install with processFallback=true", err)
	default:
		return err
	}
}

// Confirmed returns the sandbox that read returns. If its path leads through a process, read is called again after a look at the process:
// if the answer has changed, the path may lead to another pod by now, and the error is ErrNotReady.
func Confirmed(read func() (Sandbox, error)) (Sandbox, error) {
	found, err := read()
	if err != nil || !found.OfProcess() {
		return found, err
	}
	unseen := SeeProcess(found.NetNS)
	again, err := read()
	switch {
	case err != nil:
		return Sandbox{}, err
	case again != found:
		return Sandbox{}, fmt.Errorf("sandbox %s: its process has changed meanwhile: %w", found.ID, ErrNotReady)
	case unseen != nil:
		return Sandbox{}, fmt.Errorf("sandbox %s: %w", found.ID, unseen)
	}
	return found, nil
}
