package node

import (
	"bufio"
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
	if l.Tail >= 0 {
		if err := seekTail(f, l.Tail); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	if err := l.print(f, w); err != nil || !l.Follow {
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
		if err := l.print(f, w); err != nil {
			return err
		}
		if _, err := root.Stat(path.Dir(name)); errors.Is(err, fs.ErrNotExist) { // the kubelet removes the logs of a pod that is gone
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

// tailBlock is how much of a log's end is read at once in search of its last lines.
const tailBlock = 64 << 10

// seekTail moves to where the last whole lines of a file begin, so many as count. It reads no more than them, from the end.
func seekTail(f *os.File, count int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	block := make([]byte, tailBlock)
	for ends := 0; end > 0; {
		begin := max(end-tailBlock, 0)
		part := block[:end-begin]
		if _, err := f.ReadAt(part, begin); err != nil {
			return err
		}
		for i, letter := range slices.Backward(part) {
			if letter != '\n' {
				continue
			}
			if ends++; ends > count {
				_, err := f.Seek(begin+int64(i)+1, io.SeekStart)
				return err
			}
		}
		end = begin
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// print prints the whole lines from where a file was read up to, and leaves a last line that is not whole to the next call.
func (l Log) print(f *os.File, w io.Writer) error {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	in, out := bufio.NewReader(f), bufio.NewWriter(w)
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		at += int64(len(line))
		if _, err := out.WriteString(l.words(line)); err != nil {
			return err
		}
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	return out.Flush()
}

// words returns what the proxy has written: in a log, the time, the stream and a tag that says whether the line goes on precede it.
func (l Log) words(line string) string {
	fields := strings.SplitN(line, " ", 4)
	if len(fields) < 4 {
		return line
	}
	text := fields[3]
	if fields[2] == "P" {
		text = strings.TrimSuffix(text, "\n")
	}
	if l.Times {
		return fields[0] + " " + text
	}
	return text
}

// isRotated reports whether another file has the name of an open one. Between the two there is none for a moment.
func isRotated(root *os.Root, name string, f *os.File) bool {
	now, err := root.Stat(name)
	opened, errOpened := f.Stat()
	return err == nil && errOpened == nil && !os.SameFile(now, opened)
}

// find returns the log of the pod's newest proxy, or of its predecessor. A pod that was made anew with its name has another directory.
func (l Log) find(root fs.FS) (name string, err error) {
	dirs, err := fs.Glob(root, l.Namespace+"_"+l.Pod+"_*/"+sidecar.ContainerName)
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
		return "", fmt.Errorf("no proxy of the pod %s/%s has a log on this node: `kubectl get managedproxies -n %s %s -o wide` names the pod's node and profile; a shared proxy is a pod in the agent's namespace with the label %s=PROFILE",
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
