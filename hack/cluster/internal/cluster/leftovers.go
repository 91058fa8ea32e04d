package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"istio-pod-network-controller/hack/cluster/internal/state"
)

// removeFiles removes the state and the node's data. A mount below them, which cannot be, must not lose its files.
func (c *Cluster) removeFiles() error {
	if err := c.checkMounts(); err != nil {
		return err
	}
	for _, dir := range []string{c.Layout.Data(), c.Layout.Run} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the cluster's files: %w", err)
		}
	}
	return nil
}

// checkGone looks for everything that a cluster consists of and names what is still there.
func (c *Cluster) checkGone(s *state.State) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	var left []error
	pids, err := c.residents(s, hierarchies)
	if err != nil {
		return err
	}
	for _, holder := range s.Holders() {
		if holder.Alive() {
			pids = append(pids, holder.PID)
		}
	}
	if len(pids) > 0 {
		left = append(left, fmt.Errorf("processes %v", pids))
	}
	for _, h := range hierarchies {
		for _, n := range c.Plan.Nodes {
			if dir := filepath.Join(h.Path, n.Cgroup); exists(dir) {
				left = append(left, fmt.Errorf("cgroup %s", dir))
			}
		}
	}
	for _, dir := range []string{c.Layout.Run, c.Layout.Data()} {
		if exists(dir) {
			left = append(left, fmt.Errorf("directory %s", dir))
		}
	}
	if err := errors.Join(append(left, c.checkMounts())...); err != nil {
		return fmt.Errorf("something is left of the cluster: %w", err)
	}
	return nil
}

// checkMounts looks for mounts that escaped from the node's namespace.
func (c *Cluster) checkMounts() error {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list the machine's mounts: %w", err)
	}
	for line := range strings.Lines(string(mountinfo)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		for _, dir := range []string{c.Layout.Run, c.Layout.Data()} {
			if fields[4] == dir || strings.HasPrefix(fields[4], dir+"/") {
				return fmt.Errorf("mount %s", fields[4])
			}
		}
	}
	return nil
}

// keepLogs saves the logs of a start or boot that failed, which the end would remove.
func (c *Cluster) keepLogs() error {
	kept := c.Layout.FailedLogs()
	if !exists(c.Layout.Logs()) {
		return nil
	}
	if err := os.RemoveAll(kept); err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	if err := os.CopyFS(kept, os.DirFS(c.Layout.Logs())); err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	fmt.Fprintf(c.Out, "the logs are kept in %s\n", kept)
	return nil
}

// exists counts a dangling link as there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
