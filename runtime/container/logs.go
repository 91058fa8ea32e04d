package container

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"istio-pod-network-controller/internal/sidecar"
)

const (
	logSuffix = ".log"
	// deadLogs is how many logs of proxies that have ended are kept of a pod.
	deadLogs = 2
)

// TidyLogs removes the logs of proxies that ended long ago, with the older files of each. The kubelet does that only for containers that it
// removes itself. It rotates the logs of all containers that run, those of proxies too.
func (r *Runtime) TidyLogs(containers []sidecar.Container) error {
	root, err := os.OpenRoot(r.logRoot)
	if err != nil {
		return fmt.Errorf("open the directory of logs: %w", err)
	}
	defer root.Close()
	present := map[string][]uint32{}
	for _, c := range containers {
		dir := logDirectory(c.Labels)
		present[dir] = append(present[dir], c.Epoch)
	}
	var faults []error
	for dir, epochs := range present {
		faults = append(faults, removeDeadLogs(root, dir, epochs))
	}
	return errors.Join(faults...)
}

// logDirectory is the directory of a pod's proxies below the kubelet's directory of logs.
func logDirectory(l sidecar.Labels) string {
	return path.Join(l.PodNamespace+"_"+l.PodName+"_"+l.PodUID, sidecar.ContainerName)
}

// removeDeadLogs removes the logs of epochs without a container, but for the newest ones.
func removeDeadLogs(root *os.Root, dir string, present []uint32) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("list logs: %w", err)
	}
	dead := map[uint32][]string{}
	for _, e := range entries {
		// "3.log", and what the kubelet has made of it: "3.log.20261122-080000", "3.log.20261122-075000.gz".
		number, _, isLog := strings.Cut(e.Name(), logSuffix)
		epoch, err := strconv.ParseUint(number, 10, 32)
		if isLog && err == nil && !slices.Contains(present, uint32(epoch)) {
			dead[uint32(epoch)] = append(dead[uint32(epoch)], e.Name())
		}
	}
	epochs := slices.Sorted(maps.Keys(dead))
	for _, epoch := range epochs[:max(len(epochs)-deadLogs, 0)] {
		for _, name := range dead[epoch] {
			if errRemove := root.Remove(path.Join(dir, name)); errRemove != nil && !errors.Is(errRemove, fs.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("remove log: %w", errRemove))
			}
		}
	}
	return err
}
