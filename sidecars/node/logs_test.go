package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/sidecar"
)

// logTree makes logs of proxies below a directory, by their paths. Later ones are newer.
func logTree(t *testing.T, names ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	for i, name := range names {
		file := filepath.Join(root, name)
		at := time.Unix(int64(1000+i), 0)
		text := fmt.Sprintf("2026-11-22T08:00:00.1Z stdout F %s starts\n2026-11-22T08:00:01.1Z stderr P in two \n2026-11-22T08:00:01.2Z stderr F parts\n", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLog_severalProxies_printsTheChosen(t *testing.T) {
	const of = "/" + sidecar.ContainerName + "/"
	for name, c := range map[string]struct {
		logs []string
		log  Log
		want string // the file, or a part of the error
		err  bool
	}{
		"the newest proxy's":             {logs: []string{"shop_cart_u1" + of + "9.log", "shop_cart_u1" + of + "10.log", "shop_cart_u1" + of + "2.log"}, want: "shop_cart_u1" + of + "10.log"},
		"the one before":                 {logs: []string{"shop_cart_u1" + of + "9.log", "shop_cart_u1" + of + "10.log", "shop_cart_u1" + of + "2.log"}, log: Log{Previous: true}, want: "shop_cart_u1" + of + "9.log"},
		"a pod that was made anew":       {logs: []string{"shop_cart_u1" + of + "7.log", "shop_cart_u2" + of + "0.log"}, want: "shop_cart_u2" + of + "0.log"},
		"not the rotated one":            {logs: []string{"shop_cart_u1" + of + "0.log", "shop_cart_u1" + of + "1.log.1"}, want: "shop_cart_u1" + of + "0.log"},
		"a pod whose name begins alike":  {logs: []string{"shop_cart-1_u1" + of + "0.log"}, err: true, want: "no proxy of the pod shop/cart has a log on this node"},
		"a pod without a proxy of ours":  {logs: []string{"shop_cart_u1/app/0.log"}, err: true, want: "no proxy of the pod shop/cart has a log"},
		"the one before, which is gone":  {logs: []string{"shop_cart_u1" + of + "3.log"}, log: Log{Previous: true}, err: true, want: "is not there any more"},
		"a node without logs at all":     {err: true, want: "names the pod's node"},
		"a pod of its name in elsewhere": {logs: []string{"other_cart_u1" + of + "0.log"}, err: true, want: "no proxy of the pod shop/cart"},
	} {
		t.Run(name, func(t *testing.T) {
			c.log.Root, c.log.Namespace, c.log.Pod, c.log.Tail = logTree(t, c.logs...), "shop", "cart", -1
			var out bytes.Buffer
			err := c.log.Print(t.Context(), &out)
			if c.err {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if want := c.want + " starts\nin two parts\n"; err != nil || out.String() != want {
				t.Errorf("printed %q, want %q, error %v", out.String(), want, err)
			}
		})
	}
}

func TestLog_flags_areHeeded(t *testing.T) {
	const file = "shop_cart_u1/" + sidecar.ContainerName + "/0.log"
	for name, c := range map[string]struct {
		log  Log
		want string
	}{
		"the last lines":     {Log{Tail: 2}, "in two parts\n"},
		"no line":            {Log{}, ""},
		"more than there is": {Log{Tail: 100}, file + " starts\nin two parts\n"},
		"with times":         {Log{Tail: 1, Times: true}, "2026-11-22T08:00:01.2Z parts\n"},
	} {
		c.log.Root, c.log.Namespace, c.log.Pod = logTree(t, file), "shop", "cart"
		var out bytes.Buffer
		if err := c.log.Print(t.Context(), &out); err != nil || out.String() != c.want {
			t.Errorf("%s: %q, want %q, error %v", name, out.String(), c.want, err)
		}
	}
}

// A long log is read from its end: its beginning may be as large as the disk.
func TestLog_tailOfLongLog_readsTheEndOnly(t *testing.T) {
	root := logTree(t, "shop_cart_u1/"+sidecar.ContainerName+"/0.log")
	path := filepath.Join(root, "shop_cart_u1", sidecar.ContainerName, "0.log")
	if err := os.Truncate(path, 1<<40); err != nil { // a hole, of no size on the disk
		t.Fatal(err)
	}
	long := strings.Repeat("x", tailBlock)
	appendTo(t, path, "\n1 stdout F first\n2 stdout F "+long+"\n3 stdout F last\n4 stdout F not who")
	for tail, want := range map[int]string{0: "", 1: "last\n", 2: long + "\nlast\n", 3: "first\n" + long + "\nlast\n"} {
		var out bytes.Buffer
		if err := (Log{Root: root, Namespace: "shop", Pod: "cart", Tail: tail}).Print(t.Context(), &out); err != nil || out.String() != want {
			t.Errorf("the last %d lines are %.100q (%d bytes), error %v", tail, out.String(), out.Len(), err)
		}
	}
}

// Lines that come later are printed once and whole, also after the log was rotated.
func TestLog_follow_printsNewLines(t *testing.T) {
	const file = "shop_cart_u1/" + sidecar.ContainerName + "/0.log"
	root := logTree(t, file)
	path := filepath.Join(root, file)
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Log{Root: root, Namespace: "shop", Pod: "cart", Follow: true, Tail: 1}.Print(ctx, write)
	}()
	lines := make(chan string)
	go func() {
		for buffer := make([]byte, 1024); ; {
			n, err := read.Read(buffer)
			if err != nil {
				return
			}
			lines <- string(buffer[:n])
		}
	}()
	mustPrint := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Errorf("printed %q, want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q is not printed", want)
		}
	}
	mustPrint("parts\n")
	appendTo(t, path, "2026 stdout F half a ")
	appendTo(t, path, "line\n2026 stdout F and one\n")
	mustPrint("half a line\nand one\n")
	appendTo(t, path, "2026 stdout F the last of the old file\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	mustPrint("the last of the old file\n")
	appendTo(t, path, "2026 stdout F the first of the new one\n")
	mustPrint("the first of the new one\n")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	_ = read.Close()
}

// Nobody is left to end a command that kubectl no longer listens to.
func TestLog_followedPodEnds_ends(t *testing.T) {
	root := logTree(t, "shop_cart_u1/"+sidecar.ContainerName+"/0.log")
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Log{Root: root, Namespace: "shop", Pod: "cart", Follow: true, Tail: 1}.Print(t.Context(), write)
	}()
	if _, err := io.ReadFull(read, make([]byte, len("parts\n"))); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "shop_cart_u1")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it is still followed")
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}
