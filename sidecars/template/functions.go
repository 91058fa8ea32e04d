package template

import (
	"cmp"
	"fmt"
	"reflect"
)

// Function is a function that templates may call, with so many arguments (Most 0: any number).
type Function struct {
	Least, Most int
	Call        func(args []any) (any, error)
}

// builtins are Go's own functions of templates, but for call, html, js and urlquery.
func builtins() map[string]Function {
	return map[string]Function{
		"and": {1, 0, last}, "or": {1, 0, last},
		"not":     {1, 1, func(args []any) (any, error) { return !isTrue(args[0]), nil }},
		"len":     {1, 1, length},
		"index":   {1, 0, index},
		"slice":   {1, 3, slice},
		"print":   {0, 0, func(args []any) (any, error) { return fmt.Sprint(args...), nil }},
		"println": {0, 0, func(args []any) (any, error) { return fmt.Sprintln(args...), nil }},
		"printf":  {1, 0, printf},
		"eq":      {2, 0, equal},
		"ne":      {2, 2, func(args []any) (any, error) { same, err := equal(args); return same != true, err }},
		"lt":      ordered(func(c int) bool { return c < 0 }),
		"le":      ordered(func(c int) bool { return c <= 0 }),
		"gt":      ordered(func(c int) bool { return c > 0 }),
		"ge":      ordered(func(c int) bool { return c >= 0 }),
	}
}

// decides reports whether a value ends and, or.
func decides(name string, value any) bool {
	return name == "and" && !isTrue(value) || name == "or" && isTrue(value)
}

func last(args []any) (any, error) { return args[len(args)-1], nil }

func printf(args []any) (any, error) {
	format, ok := args[0].(string)
	if !ok {
		return nil, fmt.Errorf("%v is no format", args[0])
	}
	return fmt.Sprintf(format, args[1:]...), nil
}

func length(args []any) (any, error) {
	switch v := reflect.ValueOf(args[0]); v.Kind() {
	case reflect.String, reflect.Map, reflect.Slice:
		return int64(v.Len()), nil
	}
	return nil, fmt.Errorf("a value of type %T has no length", args[0])
}

func index(args []any) (value any, err error) {
	value = args[0]
	for _, key := range args[1:] {
		if value, err = indexOf(value, key); err != nil {
			return nil, err
		}
	}
	return value, nil
}

func slice(args []any) (any, error) {
	v := reflect.ValueOf(args[0])
	if k := v.Kind(); k != reflect.String && k != reflect.Slice {
		return nil, fmt.Errorf("can't slice a value of type %T", args[0])
	}
	bounds := []int{0, v.Len()}
	for i, arg := range args[1:] {
		n, ok := arg.(int64)
		if !ok || n < 0 || n > int64(v.Len()) {
			return nil, fmt.Errorf("index %v: want a number from 0 to %d", arg, v.Len())
		}
		bounds[i] = int(n)
	}
	if bounds[0] > bounds[1] {
		return nil, fmt.Errorf("indexes %d and %d are in the wrong order", bounds[0], bounds[1])
	}
	return plain(v.Slice(bounds[0], bounds[1])), nil
}

// equal reports whether the first value is one of the others.
func equal(args []any) (any, error) {
	for _, other := range args[1:] {
		if err := alike(args[0], other); err != nil || args[0] == other {
			return err == nil, err
		}
	}
	return false, nil
}

// ordered returns a function of two numbers or texts, whose order (as of cmp.Compare) decides.
func ordered(decides func(order int) bool) Function {
	return Function{2, 2, func(args []any) (any, error) {
		switch a := args[0].(type) {
		case string:
			if b, ok := args[1].(string); ok {
				return decides(cmp.Compare(a, b)), nil
			}
		case int64:
			if b, ok := args[1].(int64); ok {
				return decides(cmp.Compare(a, b)), nil
			}
		}
		return nil, fmt.Errorf("values of type %T and %T have no order", args[0], args[1])
	}}
}

// alike returns an error unless two values can be compared.
func alike(a, b any) error {
	switch a.(type) {
	case string, int64, bool:
		if reflect.TypeOf(a) == reflect.TypeOf(b) {
			return nil
		}
	}
	return fmt.Errorf("values of type %T and %T cannot be compared", a, b)
}
