(* SPDX-License-Identifier: GPL-2.0 OR MIT *)

(* OCaml's fibers, each with a stack of its own: resumed, ended by an exception, nested; stacks that grow and are moved. *)
open Effect
open Effect.Deep

type _ Effect.t += Yield : unit Effect.t | Ask : int -> int Effect.t

exception Stop of int

let log = Buffer.create 256
let note n = Buffer.add_string log (string_of_int n ^ " ")

(* No tail call: there is a frame for each. *)
let rec deep n = if n = 0 then perform (Ask 1) else 1 + deep (n - 1)

let ready = Queue.create ()
let next () = match Queue.take_opt ready with None -> () | Some go -> go ()

(* Runs f until it yields; then the next one goes on. *)
let spawn f =
  match_with f ()
    { retc = next;
      exnc = (function Stop n -> note n; next () | e -> raise e);
      effc = fun (type a) (e : a Effect.t) ->
        match e with
        | Yield -> Some (fun (k : (a, _) continuation) ->
            Queue.add (fun () -> continue k ()) ready; next ())
        | _ -> None }

let fiber n () =
  for i = 1 to 4 do
    note (10 * n + i);
    perform Yield;
    if n = 3 && i = 2 then raise (Stop 99)
  done

(* Who asks is answered, and through a fiber that does not know of the question. *)
let ask n =
  match_with deep n
    { retc = Fun.id; exnc = raise;
      effc = fun (type a) (e : a Effect.t) ->
        match e with
        | Ask m -> Some (fun (k : (a, _) continuation) -> continue k (m + 1))
        | _ -> None }

(* Resumed only to be ended: the exception is raised inside, where it is caught. *)
let ended () =
  match_with (fun () -> try perform (Ask 0) with Stop n -> n) ()
    { retc = Fun.id; exnc = raise;
      effc = fun (type a) (e : a Effect.t) ->
        match e with
        | Ask _ -> Some (fun (k : (a, _) continuation) -> discontinue k (Stop 7))
        | _ -> None }

let () =
  for n = 1 to 3 do Queue.add (fun () -> spawn (fiber n)) ready done;
  next ();
  spawn (fun () -> note (ask 10); perform Yield; note (ask 1000));
  note (ended ());
  print_endline (Buffer.contents log)
