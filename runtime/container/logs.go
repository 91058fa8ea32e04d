package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

const (
	// maxLogBytes is the size from which on a log is rotated. One older file of each is kept.
	maxLogBytes = 10 << 20
	logSuffix   = ".log"
	oldSuffix   = ".1"
	// deadLogs is how many logs of proxies that have ended are kept of a pod.
	deadLogs = 2
)

// TidyLogs rotates the logs of proxies by size, and removes those of proxies that ended long ago: the kubelet does either for the
// containers of pods' specs only.
func (r *Runtime) TidyLogs(ctx context.Context, containers []sidecar.Container) error {
	root, err := os.OpenRoot(r.logRoot)
	if err != nil {
		return fmt.Errorf("open the directory of logs: %w", err)
	}
	defer root.Close()
	present := map[string][]uint32{}
	var faults []error
	for _, c := range containers {
		dir := logDirectory(c.Labels)
		present[dir] = append(present[dir], c.Epoch)
		if c.State == sidecar.Running {
			faults = append(faults, r.rotate(ctx, root, path.Join(dir, logName(c.Epoch)), c.ID))
		}
	}
	for dir, epochs := range present {
		faults = append(faults, removeDeadLogs(root, dir, epochs))
	}
	return errors.Join(faults...)
}

// logDirectory is the directory of a pod's proxies below the kubelet's directory of logs.
func logDirectory(l sidecar.Labels) string {
	return path.Join(l.PodNamespace+"_"+l.PodName+"_"+l.PodUID, ContainerName)
}

func logName(epoch uint32) string { return strconv.FormatUint(uint64(epoch), 10) + logSuffix }

// rotate has the runtime write to a new file once a log is large.
func (r *Runtime) rotate(ctx context.Context, root *os.Root, name, id string) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (info.Size() < maxLogBytes || !info.Mode().IsRegular()) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look at log: %w", err)
	}
	if err := root.Rename(name, name+oldSuffix); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	if _, err := r.runtime.ReopenContainerLog(ctx, &criv1.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		// The runtime still writes to the old file, which has to be found under its name.
		return errors.Join(fmt.Errorf("have log of container %s opened again: %w", id, err), root.Rename(name+oldSuffix, name))
	}
	return nil
}

// removeDeadLogs removes the logs of epochs without a container, but for the newest ones.
func removeDeadLogs(root *os.Root, dir string, present []uint32) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("list logs: %w", err)
	}
	var dead []uint32
	for _, e := range entries {
		number, isLog := strings.CutSuffix(strings.TrimSuffix(e.Name(), oldSuffix), logSuffix)
		epoch, err := strconv.ParseUint(number, 10, 32)
		if isLog && err == nil && !slices.Contains(present, uint32(epoch)) && !slices.Contains(dead, uint32(epoch)) {
			dead = append(dead, uint32(epoch))
		}
	}
	slices.Sort(dead)
	for _, epoch := range dead[:max(len(dead)-deadLogs, 0)] {
		for _, name := range []string{logName(epoch), logName(epoch) + oldSuffix} {
			if errRemove := root.Remove(path.Join(dir, name)); errRemove != nil && !errors.Is(errRemove, fs.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("remove log: %w", errRemove))
			}
		}
	}
	return err
}
