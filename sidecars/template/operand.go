package template

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
)

// pipe returns the value of a pipeline.
func (r *rendering) pipe(p *parse.PipeNode, s scope) (value any, err error) {
	var before []any
	for _, command := range p.Cmds {
		if value, err = r.command(command, s, before); err != nil {
			return nil, err
		}
		before = []any{value}
	}
	return value, nil
}

// command returns the value of a part of a pipeline. before is the value of the part before it, which a function takes as its last argument.
func (r *rendering) command(n *parse.CommandNode, s scope, before []any) (any, error) {
	if name, ok := n.Args[0].(*parse.IdentifierNode); ok {
		return r.apply(name.Ident, n.Args[1:], s, before)
	}
	if len(n.Args)+len(before) > 1 {
		return nil, fmt.Errorf("%s is not a function: it takes no arguments", n.Args[0])
	}
	return r.operand(n.Args[0], s)
}

// apply calls a function. The words behind the word that decides for and, or are not looked at.
func (r *rendering) apply(name string, args []parse.Node, s scope, before []any) (any, error) {
	var values []any
	for _, arg := range args {
		value, err := r.operand(arg, s)
		if err != nil {
			return nil, err
		}
		if values = append(values, value); decides(name, value) {
			return value, nil
		}
	}
	values = append(values, before...)
	f := r.of.Functions[name]
	if len(values) < f.Least || f.Most > 0 && len(values) > f.Most {
		return nil, fmt.Errorf("%s does not take %d arguments", name, len(values))
	}
	value, err := f.Call(values)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return value, nil
}

func (r *rendering) operand(n parse.Node, s scope) (any, error) {
	switch n := n.(type) {
	case *parse.DotNode:
		return s.dot, nil
	case *parse.FieldNode:
		return fieldOf(s.dot, n.Ident)
	case *parse.VariableNode:
		v, err := s.named(n.Ident[0])
		if err != nil {
			return nil, err
		}
		return fieldOf(v.value, n.Ident[1:])
	case *parse.ChainNode:
		value, err := r.operand(n.Node, s)
		if err != nil {
			return nil, err
		}
		return fieldOf(value, n.Field)
	case *parse.PipeNode:
		return r.pipe(n, s)
	case *parse.IdentifierNode:
		return r.apply(n.Ident, nil, s, nil)
	case *parse.BoolNode:
		return n.True, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.NumberNode:
		if _, err := strconv.ParseInt(n.Text, 0, 64); err == nil || n.IsInt && n.Text[0] == '\'' {
			return n.Int64, nil
		}
	}
	return nil, fmt.Errorf("%s is no value: want a field, a variable, text, a whole number, true or false", n)
}

// fieldOf follows names of fields and of keys. A key that a map does not have is an empty value.
func fieldOf(value any, names []string) (_ any, err error) {
	for _, name := range names {
		if reflect.ValueOf(value).Kind() == reflect.Map {
			value, err = indexOf(value, name)
		} else {
			value, err = member(value, name)
		}
		if err != nil {
			return nil, err
		}
	}
	return value, nil
}

// member returns a field, or what the function in it returns.
func member(value any, name string) (any, error) {
	if of := reflect.ValueOf(value); of.Kind() == reflect.Struct {
		if f, ok := of.Type().FieldByName(name); ok && f.IsExported() {
			v := of.FieldByIndex(f.Index)
			if v.Kind() != reflect.Func {
				return plain(v), nil
			}
			out := v.Call(nil)
			err, _ := reflect.TypeAssert[error](out[1])
			return plain(out[0]), err
		}
	}
	return nil, fmt.Errorf("can't evaluate field %s in type %T", name, value)
}

// plain returns a value as templates know it.
func plain(v reflect.Value) any {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	switch {
	case !v.IsValid():
		return nil
	case v.CanInt(), v.CanUint():
		return v.Convert(reflect.TypeFor[int64]()).Int()
	case v.Kind() == reflect.String:
		return v.String()
	case v.Kind() == reflect.Bool:
		return v.Bool()
	}
	return v.Interface()
}

// isTrue reports whether a value is not empty.
func isTrue(value any) bool {
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Invalid:
		return false
	case reflect.Map, reflect.Slice:
		return v.Len() > 0
	case reflect.Struct:
		return true
	default:
		return !v.IsZero()
	}
}

// elements returns the elements of a map with their keys, in order, of a slice with their indexes, or the numbers below a number, which have no keys.
func elements(over any, keyed bool) (iter.Seq2[any, any], error) {
	v, count := reflect.ValueOf(over), int64(0)
	at := func(i int64) any { return i }
	switch v.Kind() {
	case reflect.Invalid:
	case reflect.Map:
		return ofMap(v), nil
	case reflect.Slice:
		count, at = int64(v.Len()), func(i int64) any { return plain(v.Index(int(i))) }
	case reflect.Int64:
		if count = v.Int(); keyed {
			return nil, fmt.Errorf("can't use %d to iterate over more than one variable", count)
		}
	default:
		return nil, fmt.Errorf("range can't iterate over %v", over)
	}
	return func(yield func(key, element any) bool) {
		for i := range count {
			if !yield(i, at(i)) {
				return
			}
		}
	}, nil
}

func ofMap(v reflect.Value) iter.Seq2[any, any] {
	return func(yield func(key, element any) bool) {
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			if !yield(key.String(), plain(v.MapIndex(key))) {
				return
			}
		}
	}
}

// indexOf returns an element.
func indexOf(of, key any) (any, error) {
	switch v := reflect.ValueOf(of); v.Kind() {
	case reflect.Map:
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("key %v of type %T: want text", key, key)
		}
		if e := v.MapIndex(reflect.ValueOf(name)); e.IsValid() {
			return plain(e), nil
		}
		return plain(reflect.Zero(v.Type().Elem())), nil
	case reflect.Slice, reflect.String:
		i, ok := key.(int64)
		if !ok || i < 0 || i >= int64(v.Len()) {
			return nil, fmt.Errorf("index %v: want a number from 0 to %d", key, v.Len()-1)
		}
		return plain(v.Index(int(i))), nil
	}
	return nil, fmt.Errorf("can't index a value of type %T", of)
}
