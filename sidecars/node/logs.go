package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/runtime/container"
)

// logPoll is the time between two looks for new lines.
const logPoll = 250 * time.Millisecond

// Log is the log of a proxy that the node's agent runs.
type Log struct {
	// Root is the kubelet's directory of logs.
	Root           string
	Namespace, Pod string
	// Previous is the proxy before the newest one.
	Previous bool
	// Follow prints new lines until the context ends, or the pod is gone.
	Follow bool
	// Times prints when each line was written.
	Times bool
	// Tail is how many of the last lines are printed; negative is all.
	Tail int
}

// DefaultLogRoot is the kubelet's directory of logs.
const DefaultLogRoot = container.DefaultLogRoot

// Print prints the log. It needs no container: the logs of the last proxies stay when these have ended.
func (l Log) Print(ctx context.Context, w io.Writer) error {
	root, err := os.OpenRoot(l.Root)
	if err != nil {
		return fmt.Errorf("open the directory of logs: %w", err)
	}
	defer root.Close()
	name, err := l.find(root.FS())
	if err != nil {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = f.Close() }() // not the first one, if another has replaced it
	lines, err := readLines(f)
	if err == nil && l.Tail >= 0 {
		lines = lines[max(len(lines)-l.Tail, 0):]
	}
	if err := errors.Join(err, l.print(lines, w)); err != nil || !l.Follow {
		return err
	}
	tick := time.NewTicker(logPoll)
	defer tick.Stop()
	for seen := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// The runtime makes the new file before it stops writing to the old one, which is read once more behind that.
		last := seen
		seen = isRotated(root, name, f)
		lines, err := readLines(f)
		if err := errors.Join(err, l.print(lines, w)); err != nil {
			return err
		}
		if isGone(root, path.Dir(name)) {
			return nil
		}
		if !last {
			continue
		}
		if next, err := root.Open(name); err == nil {
			_ = f.Close()
			f, seen = next, false
		}
	}
}

// readLines reads the whole lines from where a file was read up to, and leaves a last line that is not whole to the next call.
func readLines(f *os.File) ([]string, error) {
	from, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	end := bytes.LastIndexByte(text, '\n') + 1
	if _, err := f.Seek(from+int64(end), io.SeekStart); err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	return slices.Collect(strings.Lines(string(text[:end]))), nil
}

// print prints what the proxy has written: in a log, the time, the stream and a tag that says whether the line goes on precede it.
func (l Log) print(lines []string, w io.Writer) error {
	var out strings.Builder
	for _, line := range lines {
		fields := strings.SplitN(line, " ", 4)
		if len(fields) < 4 {
			out.WriteString(line)
			continue
		}
		if l.Times {
			out.WriteString(fields[0] + " ")
		}
		if fields[2] == "P" {
			fields[3] = strings.TrimSuffix(fields[3], "\n")
		}
		out.WriteString(fields[3])
	}
	if out.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// isGone reports whether a directory is not there: the kubelet removes the logs of a pod that is gone.
func isGone(root *os.Root, dir string) bool {
	_, err := root.Stat(dir)
	return errors.Is(err, fs.ErrNotExist)
}

// isRotated reports whether another file has the name of an open one. Between the two there is none for a moment.
func isRotated(root *os.Root, name string, f *os.File) bool {
	now, err := root.Stat(name)
	opened, errOpened := f.Stat()
	return err == nil && errOpened == nil && !os.SameFile(now, opened)
}

// find returns the log of the pod's newest proxy, or of its predecessor. A pod that was made anew with its name has another directory.
func (l Log) find(root fs.FS) (name string, err error) {
	dirs, err := fs.Glob(root, l.Namespace+"_"+l.Pod+"_*/"+container.ContainerName)
	if err != nil {
		return "", fmt.Errorf("look for logs: %w", err)
	}
	var newest, before string
	var newestAt time.Time
	for _, dir := range dirs {
		last, previous, at := newestLogs(root, dir)
		if last != "" && (newest == "" || at.After(newestAt)) {
			newest, before, newestAt = last, previous, at
		}
	}
	switch {
	case newest == "":
		return "", fmt.Errorf("no proxy of the pod %s/%s has a log on this node: `kubectl get managedproxies -n %s %s -o wide` names the pod's node and profile; the proxy of a profile of mode shared is a pod in the agent's namespace with the label %s=PROFILE",
			l.Namespace, l.Pod, l.Namespace, l.Pod, sidecar.LabelShared)
	case l.Previous && before == "":
		return "", fmt.Errorf("the log of the proxy before the newest one of the pod %s/%s is not there any more", l.Namespace, l.Pod)
	case l.Previous:
		return before, nil
	}
	return newest, nil
}

// newestLogs returns the logs with the two highest epochs of a directory, and when the first of them was written last.
func newestLogs(root fs.FS, dir string) (last, previous string, at time.Time) {
	entries, err := fs.ReadDir(root, dir)
	if err != nil {
		return "", "", time.Time{}
	}
	first, second := int64(-1), int64(-1)
	for _, e := range entries {
		number, isLog := strings.CutSuffix(e.Name(), ".log")
		epoch, err := strconv.ParseInt(number, 10, 64)
		switch {
		case !isLog || err != nil || !e.Type().IsRegular():
		case epoch > first:
			first, second, previous, last = epoch, first, last, path.Join(dir, e.Name())
			if info, err := e.Info(); err == nil {
				at = info.ModTime()
			}
		case epoch > second:
			second, previous = epoch, path.Join(dir, e.Name())
		}
	}
	return last, previous, at
}
